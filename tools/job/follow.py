"""Follows a job until its first step, its end, or a cause that keeps it from training."""

import re
import time

from tools.core import Say, UserError, wait
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.metrics import progress
from tools.job.metrics.series import Record
from tools.job.snapshot import LiveJob, Snapshot
from tools.job.snapshot.collect import collect
from tools.kube import Kubectl
from tools.workload import Workload

STANDS = 6.0  # seconds that a cause must last: kubelets and controllers need a moment


class Followed:
    """A job that is watched: its last snapshot, and its first step or a cause that lasts if there is one."""

    snapshot: Snapshot
    explanation: Explanation
    step: Record | None = None
    cause: Cause | None = None

    def __init__(self, kubectl: Kubectl, job: LiveJob, uid: str, steps: bool, say: Say) -> None:
        self._kubectl, self._job, self._uid, self._steps, self._say = kubectl, job, uid, steps, say
        self._since: dict[str, float] = {}  # when the present cause was first seen
        self._said = ""

    @property
    def is_over(self) -> bool:
        return is_over(self.snapshot)

    def look(self) -> bool:
        """Take a snapshot; return whether there is nothing more to wait for."""
        self.snapshot = collect(self._kubectl, self._job, run=self._steps, around=True)
        if self.snapshot.uid != self._uid:
            raise UserError(f"{self.snapshot.name} was replaced by another job: {self.snapshot.uid}", code=1)
        self.explanation = explain(self.snapshot)
        self.step = first_step(self.snapshot) if self._steps else None
        first = self.explanation.causes[:1]
        self._since = {cause.kind: self._since.get(cause.kind, time.monotonic()) for cause in first}
        lasting = [cause for cause in first if time.monotonic() - self._since[cause.kind] > STANDS]
        self.cause = lasting[0] if lasting else None
        return bool(self.step or self.cause or self.is_over)

    def report(self) -> None:
        """Print the job's state, if more than its numbers has changed."""
        line = f"{self.snapshot.state}: {self.explanation.summary}"
        words = re.sub(r"\d+", "", line)
        if words != self._said:
            self._said = words
            self._say(line)


def follow(kubectl: Kubectl, job: Workload, uid: str, seconds: float, say: Say, steps: bool = True) -> Followed:
    """Watch the job `uid` for `seconds`, or until it ends, a cause lasts, or (with `steps`) its first step.

    Raises UserError if another job takes the job's name.
    """
    followed = Followed(kubectl, LiveJob(job), uid, steps, say)
    wait.until(followed.look, seconds, report=lambda _waited: followed.report())
    return followed


def first_step(seen: Snapshot) -> Record | None:
    """Return the newest step since the job's pods started, None if there is none.

    The run directory may hold older steps: of an earlier job, or of this one before it was suspended.
    """
    last = progress.of(seen).last
    started = [pod.started for pod in seen.pods if pod.started]
    if last is None or last.time is None or not started or last.time < min(started).timestamp():
        return None
    return last
