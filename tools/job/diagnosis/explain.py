"""Why a job is where it is: one cause first, `healthy`, or `cannot tell` with what was looked at."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tools.core.output import count
from tools.core.timestamps import duration, moment
from tools.core.verdict import State, Verdict
from tools.job.diagnosis import (
    admission,
    autoscaling,
    deleted_pods,
    failures,
    hangs,
    performance,
    scheduling,
    startup,
)
from tools.job.diagnosis.cause import Cause, Rule
from tools.job.metrics import progress
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.snapshot import Snapshot

# Every rule looks for itself; the layer of what it finds says what explains what.
RULES: tuple[Rule, ...] = (
    *(admission.suspended, admission.gang, admission.operator, admission.refused),
    *(scheduling.claims, scheduling.gated, scheduling.scheduler, scheduling.unschedulable),
    *(startup.references, startup.images, startup.container_errors, startup.mounts),
    *(failures.failures, deleted_pods.ended),
    *(hangs.lost_nodes, hangs.bad_nodes, hangs.network, hangs.hang, performance.not_finite),
    *(performance.straggler, performance.data_wait, performance.slow_network, performance.slowdown),
    performance.low_use,  # when none of the others is
)
NEW = 60.0  # seconds that a pod has for a node, and a container for its first sign of life
PULL = 1800.0  # seconds that a large image may take
IMPORTS = 180.0  # seconds that Python may take to read torch from a slow disk, without a word
QUIET = 300.0  # seconds after which a log that says nothing proves nothing


class Answer(enum.Enum):
    """What can be said of a job; the value is how it is printed."""

    HEALTHY = "healthy"
    CAUSE = "cause"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Explanation:
    """The answer: `causes` in order, the first one explains the job; `looked` is what it rests on."""

    state: Answer
    summary: str
    causes: list[Cause] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Return the answer as a verdict: healthy is PASS, a cause is FAIL."""
        if self.state is not Answer.CAUSE:
            state = State.PASS if self.state is Answer.HEALTHY else State.CANNOT_TELL
            return Verdict(state, self.summary, self.looked, details=self._details())
        first = self.causes[0]
        return Verdict(
            State.FAIL, f"{first.kind}: {first.summary}", first.evidence, first.remedy, self._details()
        )

    def _details(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "cause": self.causes[0].kind if self.causes else None,
            "causes": [cause.as_dict() for cause in self.causes],
            "looked_at": self.looked,
        }


def explain(snapshot: Snapshot, rules: Iterable[Rule] = RULES) -> Explanation:
    """Apply every rule and put what is found in order."""
    looked = looked_at(snapshot)
    if done := snapshot.condition("Succeeded"):
        return Explanation(Answer.HEALTHY, f"succeeded at {done.get('lastTransitionTime')}", looked=looked)
    causes = sorted((cause for rule in rules for cause in rule(snapshot)), key=lambda cause: cause.order)
    if causes:
        return Explanation(Answer.CAUSE, causes[0].summary, _distinct(causes), looked)
    good = _healthy(snapshot)
    if good:
        return Explanation(Answer.HEALTHY, good, looked=looked)
    return Explanation(Answer.CANNOT_TELL, _unclear(snapshot), looked=looked)


def _distinct(causes: list[Cause]) -> list[Cause]:
    """Return each kind once, its first."""
    seen: dict[str, Cause] = {}
    for cause in causes:
        seen.setdefault(cause.kind, cause)
    return list(seen.values())


def _healthy(snapshot: Snapshot) -> str | None:
    """Return what goes well, None where nothing shows that it does."""
    if snapshot.condition("Failed"):
        return None
    pods = snapshot.pods
    age = snapshot.age(moment(snapshot.job["metadata"].get("creationTimestamp"))) or 0.0
    if len(pods) < snapshot.replicas and age < NEW:
        return f"starting: {len(pods)} of {count(snapshot.replicas, 'pod')} made"
    if len(pods) < snapshot.replicas and progress.of(snapshot).step is None:
        return None
    waiting = [pod for pod in pods if not (pod.running or pod.done)]
    if waiting:
        return _starting(snapshot)
    return _moving(snapshot)


def _starting(snapshot: Snapshot) -> str | None:
    for pod in (pod for pod in snapshot.pods if not (pod.running or pod.done)):
        age = snapshot.age(pod.created) or 0.0
        if pod.deleted:
            return f"{pod.short} is being deleted and will be made again" if _going(snapshot, pod) else None
        if pod.node is None:
            return _placing(snapshot, pod, age)
        if init := pod.running_init:
            since = snapshot.age(init[1]) or 0.0
            return (
                f"{pod.short}: init container {init[0]} runs since {duration(since)}"
                if since < PULL
                else None
            )
        events = snapshot.events("Pod", pod.name)
        reasons = [event.get("reason") for event in events if event.get("type") != "Warning"]
        if reasons and reasons[-1] == "Pulling" and age < PULL:
            return f"{pod.short}: its image is being pulled since {duration(age)}"
        if age < NEW:
            return f"{pod.short} is starting since {duration(age)}"
    return None


def _placing(snapshot: Snapshot, pod: JobPod, age: float) -> str | None:
    """Return what a pod without a node waits for, None where it waits too long."""
    if coming := autoscaling.promised(snapshot, pod):
        return coming
    making = [name for name in claim_names(pod) if scheduling.provisioning(snapshot, name)]
    if making:
        return f"{pod.short} waits for the volume of claim {making[0]}, which is being made"
    return f"{pod.short} waits for a node since {duration(age)}" if age < NEW else None


def _going(snapshot: Snapshot, pod: JobPod) -> bool:
    """Say whether a pod that is being deleted has time left: deletionTimestamp has its grace in it."""
    return (snapshot.age(moment(pod.item["metadata"]["deletionTimestamp"])) or 0.0) < NEW


def _moving(snapshot: Snapshot) -> str | None:
    """Return how the containers that run now get on; what others before them left behind says nothing."""
    now = progress.of(snapshot)
    pods = [pod for pod in snapshot.pods if pod.running]
    newest = max((pod.started for pod in pods if pod.started), default=None)
    age = snapshot.age(newest) or 0.0
    hosts = {pod.name for pod in snapshot.pods}
    beats = [beat for beat in now.beats if beat.phase == "done" or hangs.of_this_try(beat, pods)]
    missing = [beat for beat in now.beats if beat.host in hosts and beat not in beats]
    if beats and not (missing and age > IMPORTS):
        oldest = min(beats, key=lambda beat: beat.time)
        silent = now.now.timestamp() - oldest.time
        if silent <= progress.limits(snapshot).for_(oldest):
            step = f" step {now.step}" if now.step is not None else ""
            return f"{beats[0].phase}{step}, every rank has been heard of within {duration(silent)}"
        return None
    last = now.last
    if last is not None and last.time is not None and (newest is None or last.time >= newest.timestamp()):
        silent = now.now.timestamp() - last.time
        if silent <= max(QUIET, 20 * _pace(now)):
            return f"step {last.step}, {duration(silent)} ago ({now.source})"
        return None
    quiet = snapshot.age(hangs.newest_line(snapshot))
    if quiet is not None and quiet < QUIET:
        return f"running since {duration(age)}, no step yet, the last line was written {duration(quiet)} ago"
    return f"running since {duration(age)}, too new for a sign of life" if age < IMPORTS else None


def _pace(now: progress.Progress) -> float:
    """Return the seconds between the newest two steps' lines, 0 where they are not known."""
    times = [record.time for record in now.records if record.time is not None][-20:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(gaps, default=0.0)


def _unclear(snapshot: Snapshot) -> str:
    """Return what is known of a job that nothing explains."""
    if snapshot.condition("Failed"):
        return "the job has failed, and nothing that is left says why"
    waiting = [pod for pod in snapshot.pods if not (pod.running or pod.done)]
    if waiting:
        pod = waiting[0]
        age = snapshot.age(pod.created) or 0.0
        room = scheduling.room(snapshot, pod) if pod.node is None else None
        seen = room or "nothing that was seen stops it"
        return f"{pod.short} is {pod.phase} since {duration(age)}, and {seen}"
    now = progress.of(snapshot)
    if now.moved is not None:
        silent = (now.now - now.moved).total_seconds()
        return f"no step for {duration(silent)}: hung, or in a long phase that leaves no trace"
    return "the pods run, and nothing shows whether they get on"


def looked_at(snapshot: Snapshot) -> list[str]:
    """Return what the answer rests on, and what could not be seen."""
    pods = snapshot.pods
    phases = ", ".join(f"{pod.short} {pod.phase}" for pod in pods[:4])
    rest = f" and {len(pods) - 4} more" if len(pods) > 4 else ""
    now = progress.of(snapshot)
    found = [
        f"{count(len(pods), 'pod')} of {snapshot.replicas}: {phases or 'none'}{rest}",
        f"{count(len(snapshot.of('Node')), 'node')}, {count(len(snapshot.of('Event')), 'event')},"
        f" {count(len(snapshot.logs), 'log')}, progress from {now.source}",
    ]
    return [*found, *(f"not seen: {what}: {reason}" for what, reason in snapshot.unseen.items())]
