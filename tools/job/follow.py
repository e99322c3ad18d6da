"""Follows a job until its first step, its end, or a cause that keeps it from training."""

import math
import re
import time

from tools.core import Say, UserError, repo, wait
from tools.job import retry, submit
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.metrics import progress
from tools.job.metrics.series import Record
from tools.job.snapshot import LiveJob, Snapshot
from tools.job.snapshot.collect import collect
from tools.kube import Kubectl, Manifests
from tools.kube.kubectl import CANNOT_SEE
from tools.workload import Workload, kinds

LOOK = 10.0  # seconds between two looks at a job that is followed to its end
STANDS = 6.0  # seconds that a cause must last: kubelets and controllers need a moment


class Followed:
    """A job that is watched: its last snapshot, and its first step or a cause that lasts if there is one."""

    snapshot: Snapshot
    explanation: Explanation
    step: Record | None = None
    cause: Cause | None = None
    reached = 0  # the newest step that was seen, also while pods lived

    def __init__(
        self, kubectl: Kubectl, job: LiveJob, uid: str, steps: bool, say: Say, to_the_end: bool = False
    ) -> None:
        self._kubectl, self._job, self._uid, self._steps, self._say = kubectl, job, uid, steps, say
        self._to_the_end = to_the_end
        self._since: dict[str, float] = {}  # when the present cause was first seen
        self._said = ""

    @property
    def is_over(self) -> bool:
        return is_over(self.snapshot)

    def look(self) -> bool:
        """Take a snapshot; return whether there is nothing more to wait for.

        To the end of a job the cluster may fail to answer at times.
        """
        try:
            self.snapshot = collect(self._kubectl, self._job, run=self._steps, around=True)
        except UserError as problem:
            if not (self._to_the_end and self._said and problem.code == CANNOT_SEE):
                raise
            self._say(f"not seen this time: {problem.message}")
            return False
        if self.snapshot.uid != self._uid:
            raise UserError(f"{self.snapshot.name} was replaced by another job: {self.snapshot.uid}", code=1)
        self.explanation = explain(self.snapshot)
        self.reached = max(self.reached, progress.of(self.snapshot).step or 0)
        self.step = first_step(self.snapshot) if self._steps and not self._to_the_end else None
        first = self.explanation.causes[:1]
        self._since = {cause.kind: self._since.get(cause.kind, time.monotonic()) for cause in first}
        lasting = [cause for cause in first if time.monotonic() - self._since[cause.kind] > STANDS]
        self.cause = lasting[0] if lasting else None
        return self.is_over or bool(self.step or (self.cause and not self._to_the_end))

    def report(self, _waited: float) -> None:
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
    wait.until(followed.look, seconds, report=followed.report)
    return followed


def to_the_end(kubectl: Kubectl, manifests: Manifests, uid: str, say: Say) -> Followed:
    """Watch the job `uid` until it ends, and submit it again as often as the cell's key `retry` allows.

    Raises UserError if another job takes the job's name, or an attempt is refused.
    """
    from tools.cells.trainer_config import load_config

    config, job = load_config(manifests, repo.root()), kinds.job_of(manifests)
    rule = config.retry if config else None
    while True:
        followed = Followed(kubectl, LiveJob(job), uid, True, say, to_the_end=True)
        wait.until(followed.look, math.inf, every=LOOK, report=followed.report)
        seen = followed.snapshot
        if rule is None or seen.condition("Succeeded") is not None:
            return followed
        try:
            planned = retry.plan(kubectl, seen, followed.explanation, rule.most, rule, followed.reached)
        except UserError as problem:
            say(f"not submitted again: {problem.message}")
            return followed
        last = planned.last
        say(f"attempt {len(planned.ledger)} of {rule.most}: {last.cause}: {last.evidence}; changes {last.changed}")
        uid = submit.uid_of(retry.carry_out(kubectl, seen, planned.objects, say), job.item)


def first_step(seen: Snapshot) -> Record | None:
    """Return the newest step since the job's pods started, None if there is none.

    The run directory may hold older steps: of an earlier job, or of this one before it was suspended.
    """
    last = progress.of(seen).last
    started = [pod.started for pod in seen.pods if pod.started]
    if last is None or last.time is None or not started or last.time < min(started).timestamp():
        return None
    return last
