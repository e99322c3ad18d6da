"""What follows a loss that is not finite or that jumps: stop, skip the step, or roll back. Alike on all ranks.

A spike is a loss or gradient norm more than 6 standard deviations above its mean over the last 128 steps, once 64
of them are known. These are the defaults of OLMo-core's SkipStepOptimizer (github.com/allenai/OLMo-core,
src/olmo_core/optim/skip_step_optimizer.py, 2026-11). Values of bad steps do not become part of the mean. A rollback
continues behind the data of all steps since the checkpoint, as PaLM's training did (arXiv 2204.02311, section 5.1).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from training.config import Train
from training.distributed.ranks import Ranks
from training.run.directory import RunDir, last_records
from training.run.failure import LossError

WINDOW, FEWEST, DEVIATIONS = 128, 64, 6.0
MOST_SKIPPED = 10  # steps in a row: with more of them the weights are the cause, not the data
_LEDGER_BYTES = 1 << 20


class History:
    """The losses and gradient norms of the last good steps; a part of the state, because decisions rest on it."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.norms: deque[float] = deque(maxlen=WINDOW)
        self.skipped = 0  # steps in a row

    def add(self, loss: float, norm: float) -> None:
        self.losses.append(loss)
        self.norms.append(norm)
        self.skipped = 0

    def spike(self, loss: float, norm: float) -> str | None:
        """Why these values are a spike, None if they are not."""
        for name, value, earlier in (("loss", loss, self.losses), ("gradient norm", norm, self.norms)):
            if len(earlier) < FEWEST:
                continue
            mean = math.fsum(earlier) / len(earlier)
            deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in earlier) / (len(earlier) - 1))
            if value > mean + DEVIATIONS * deviation:
                rule = f"{mean:.4g} + {DEVIATIONS:g} x {deviation:.3g} of the {len(earlier)} steps before"
                return f"the {name} {value:.4g} is above {rule}"
        return None

    def saved(self) -> dict[str, Any]:
        return {"losses": [*self.losses], "norms": [*self.norms], "skipped": self.skipped}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up what `saved` returned; nothing is known before a run has a history."""
        self.losses = deque(saved.get("losses", ()), WINDOW)
        self.norms = deque(saved.get("norms", ()), WINDOW)
        self.skipped = saved.get("skipped", 0)


class Guard:
    """Judges every step by the keys train.on_nan and train.on_spike, and keeps the ledger (rank 0 writes it)."""

    def __init__(self, recipe: Train, run: RunDir, ranks: Ranks, history: History) -> None:
        self._keys = {"nan": recipe.on_nan, "spike": recipe.on_spike}
        self._run, self._ranks, self._history = run, ranks, history
        self.before_update = "skip" in self._keys.values()
        """Whether each step waits for its loss, which a skipped step needs."""

    def see(self, step: int, loss: float, norm: float) -> None:
        """Judge a step that was updated with finite values; LossError for a spike."""
        if self.before_update or self._keys["spike"] == "ignore":
            return
        if reason := self._history.spike(loss, norm):
            raise LossError("spike", step, f"{reason}, at step {step}: a spike by train.on_spike")
        self._history.add(loss, norm)

    def skipped(self, step: int, losses: torch.Tensor, counts: Sequence[int], norm: torch.Tensor) -> LossError | None:
        """Why the step's update is left out, None if it is not; called with the values of this rank before it.

        Raises:
            LossError: on every rank, for a bad step that is not to be skipped.
        """
        if not self.before_update:
            return None
        error = self._judged(step, losses.tolist(), counts, float(norm))
        if error is None:
            return None
        if self._keys[error.kind] != "skip":
            raise error
        self._history.skipped += 1
        if self._history.skipped > MOST_SKIPPED:
            raise LossError(error.kind, step, f"{error}; the {MOST_SKIPPED} steps before were skipped", final=True)
        return error

    def _judged(self, step: int, losses: list[float], counts: Sequence[int], norm: float) -> LossError | None:
        finite = all(map(math.isfinite, (*losses, norm)))
        norms = [0.0] * self._ranks.world_size
        norms[self._ranks.rank] = norm if finite else 0.0
        own = losses if finite and self._ranks.counts else [0.0] * len(losses)
        bad, *rest = self._ranks.sum([float(not finite), *own, *norms])
        sums, norm = rest[: len(own)], max(rest[len(own) :])
        if bad:
            return LossError("nan", step, f"the loss or the gradient norm is not finite at step {step}")
        loss = sum(total / count for total, count in zip(sums, counts, strict=True))
        if self._keys["spike"] != "ignore" and (reason := self._history.spike(loss, norm)):
            return LossError("spike", step, f"{reason}, at step {step}: a spike by train.on_spike")
        self._history.add(loss, norm)
        return None

    def check_may_roll_back(self, error: LossError) -> None:
        """Raise the error if the run is to stop because of it."""
        action, _, most = self._keys[error.kind].partition(":")
        if action != "rollback" or error.final:
            raise error
        done = self._count(error.kind)
        if done >= int(most):
            text = f"{error}; rolled back {done} times before, the limit of train.on_{error.kind}: {action}:{most}"
            raise LossError(error.kind, error.step, text, final=True) from error

    def _count(self, kind: str) -> int:
        own = [one for one in self._rollbacks() if one.get("kind") == kind]
        return int(self._ranks.sum([float(len(own))])[0])

    def _rollbacks(self) -> list[dict[str, Any]]:
        """The ledger's lines about rollbacks; none on the ranks that do not keep it."""
        lines = last_records(self._run.skipped, _LEDGER_BYTES) if self._ranks.first else []
        return [one for one in lines if one.get("action") == "rollback"]

    def record(self, error: LossError, action: str, first: int, end: int, restored: int | None = None) -> None:
        """Add a line to the ledger: nothing was learned of the samples [first, end)."""
        if not self._ranks.first:
            return
        said = {"kind": error.kind, "action": action, "step": error.step, "restored": restored, "first": first}
        line = {"time": time.time(), **said, "end": end, "reason": str(error)}
        with self._run.skipped.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def position(self, step: int, position: int) -> int:
        """Where a run continues that has loaded `step`, which was saved at a data position.

        A process that ended after a rollback and before the next save has the same window to skip again.
        """
        ends = [
            one["end"]
            for one in self._rollbacks()
            if (one.get("restored"), one.get("first")) == (step, position) and type(one.get("end")) is int
        ]
        return max(position, int(self._ranks.sum([float(max(ends, default=0))])[0]))
