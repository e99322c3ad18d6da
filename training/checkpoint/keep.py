"""Which checkpoints of a run are kept: the newest, milestones, the best, and damaged ones for a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import step_name
from training.checkpoint.tier import Tier

FEWEST = 2  # lower limit of kept checkpoints: the newest may turn out unreadable
# Keys of the section checkpoint, by the rule that each one sets.
KEYS = {"last": "keep", "every": "keep_every", "best": "keep_best", "bad_days": "keep_bad_days"}
DAYS = 7.0  # for which a quarantined checkpoint is kept


@dataclass(frozen=True)
class Rules:
    """The newest `last`, each step that `every` divides (0: none), the `best` ones by held-out loss.

    A quarantined checkpoint is kept for `bad_days`.
    """

    last: int = FEWEST
    every: int = 0
    best: int = 0
    bad_days: float = DAYS

    def __post_init__(self) -> None:
        for name, least in (("last", FEWEST), ("every", 0), ("best", 0), ("bad_days", 0)):
            value = getattr(self, name)
            what, kinds = ("a number", (int, float)) if name == "bad_days" else ("a whole number", (int,))
            if type(value) not in kinds or not value >= least:
                raise CheckpointError(f"{KEYS[name]} is {value!r:.40}; {what} of at least {least} is needed")

    def chosen(self, complete: Iterable[int], losses: Mapping[int, float]) -> set[int]:
        """Those of the complete steps that are kept. Of equal losses the newer step is the better one."""
        steps = sorted(complete)
        ranked = sorted((step for step in steps if step in losses), key=lambda step: (losses[step], -step))
        milestones = {step for step in steps if self.every and step % self.every == 0}
        return {*steps[-self.last :], *milestones, *ranked[: self.best]}

    def most(self, steps: int, every: int) -> int:
        """The most checkpoints that a run of `steps` keeps if it saves each `every` steps and the last one."""
        milestones = steps // self.every if self.every else 0
        return min(-(-steps // every), self.last + milestones + self.best)


DEFAULT = Rules()


def superseded(tier: Tier, complete: Iterable[int], rules: Rules) -> list[str]:
    """Names of a tier's steps that the rules do not keep, oldest first, and of refused ones that are old enough.

    A step that is not complete is superseded when it is older than the newest `last` ones. While there are fewer
    complete steps than that, no step is.
    """
    good = sorted(complete)
    kept = rules.chosen(good, tier.losses() if rules.best else {})
    if len(good) < rules.last:
        old = []
    else:
        old = [step_name(step) for step in tier.steps() if step < good[-rules.last] and step not in kept]
    return old + tier.aged(rules.bad_days)
