"""Which checkpoints of a run are kept: the newest, milestones, the best, and damaged ones for a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import committed_steps, quarantined, step_name
from training.run.directory import RunDir, last_records

FEWEST = 2  # lower limit of kept checkpoints: the newest may turn out unreadable
DAYS = 7.0  # for which a quarantined checkpoint is kept
_DAY = 86400.0
_HELDOUT_BYTES = 16 << 20  # of heldout.jsonl: more than 100,000 evaluations


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
        if self.last < FEWEST:
            raise CheckpointError(f"keep is {self.last}; at least {FEWEST} checkpoints are kept")

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


def losses_of(run: RunDir) -> dict[int, float]:
    """The held-out loss of each evaluated step; without those that are not finite numbers."""
    pairs = ((record.get("step"), record.get("loss")) for record in last_records(run.heldout, _HELDOUT_BYTES))
    return {step: loss for step, loss in pairs if type(step) is int and type(loss) is float and math.isfinite(loss)}


def superseded(directory: Path, complete: Iterable[int], rules: Rules, losses: Mapping[int, float]) -> list[str]:
    """Names in a checkpoint directory that the rules do not keep, oldest step first.

    A step that is not complete is superseded when it is older than the newest `last` ones. While there are fewer
    complete steps than that, no step is.
    """
    good = sorted(complete)
    kept = rules.chosen(good, losses)
    if len(good) < rules.last:
        old = []
    else:
        old = [step_name(step) for step in committed_steps(directory) if step < good[-rules.last] and step not in kept]
    return old + aged(directory, rules.bad_days)


def aged(directory: Path, days: float) -> list[str]:
    """Names of the quarantined checkpoints that were moved aside at least so many days ago, and of links there."""
    until = time.time() - days * _DAY
    return [name for name, _ in quarantined(directory) if _is_old(directory / name, until)]


def _is_old(path: Path, until: float) -> bool:
    try:
        return path.is_symlink() or path.lstat().st_ctime <= until
    except FileNotFoundError:
        return False  # another process has pruned it
