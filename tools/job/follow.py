"""Follows a job until its first step, its end, or a cause that keeps it from training."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from tools.core.errors import UserError
from tools.core.wait import until
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.metrics import progress
from tools.job.metrics.series import Record
from tools.job.snapshot.collect import collect
from tools.job.snapshot.snapshot import Snapshot
from tools.job.status import state_of
from tools.kube.kubectl import Kubectl

STANDS = 6.0  # seconds that a cause must last: kubelets and controllers need a moment


@dataclass(frozen=True)
class Followed:
    """The last snapshot of a job: its first step or its end, a cause that lasts, or none of them in time."""

    snapshot: Snapshot
    explanation: Explanation
    step: Record | None = None
    cause: Cause | None = None
    is_over: bool = False


def follow(
    kubectl: Kubectl, name: str, uid: str, seconds: float, say: Callable[[str], None], steps: bool = True
) -> Followed:
    """Watch the job `uid` for `seconds`, or until it ends, a cause lasts, or (with `steps`) its first step.

    Raises UserError if another job takes the job's name.
    """
    watch = _Watch(kubectl, name, uid, steps, say)
    until(watch.settled, seconds, report=lambda _waited: watch.report())
    return watch.last


class _Watch:
    last: Followed

    def __init__(
        self, kubectl: Kubectl, name: str, uid: str, steps: bool, say: Callable[[str], None]
    ) -> None:
        self._kubectl, self._name, self._uid, self._steps, self._say = kubectl, name, uid, steps, say
        self._cause: tuple[str, float] | None = None  # its kind, and when it was first seen
        self._said = ""

    def settled(self) -> bool:
        """Look at the job once; return whether there is nothing more to wait for."""
        seen = collect(self._kubectl, self._name, run=self._steps)
        if seen.uid != self._uid:
            raise UserError(f"{self._name} was replaced by another job: {seen.uid}", code=1)
        found = explain(seen)
        step = first_step(seen) if self._steps else None
        cause = found.causes[0] if found.causes else None
        self.last = Followed(seen, found, step, cause if self._lasts(cause) else None, is_over(seen))
        return bool(self.last.step or self.last.cause or self.last.is_over)

    def _lasts(self, cause: Cause | None) -> bool:
        if cause is None:
            self._cause = None
        elif self._cause is None or self._cause[0] != cause.kind:
            self._cause = (cause.kind, time.monotonic())
        return self._cause is not None and time.monotonic() - self._cause[1] > STANDS

    def report(self) -> None:
        """Print the job's state, if more than its numbers has changed."""
        line = f"{state_of(self.last.snapshot.job)}: {self.last.explanation.summary}"
        words = re.sub(r"\d+", "", line)
        if words != self._said:
            self._said = words
            self._say(line)


def first_step(seen: Snapshot) -> Record | None:
    """Return the newest step since the job's pods started, None if there is none.

    The run directory may hold older steps: of an earlier job, or of this one before it was suspended.
    """
    last = progress.of(seen).last
    started = [pod.started for pod in seen.pods if pod.started]
    if last is None or last.time is None or not started or last.time < min(started).timestamp():
        return None
    return last
