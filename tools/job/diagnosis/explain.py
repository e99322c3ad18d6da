"""Why a job is in its state: the first cause, healthy, or cannot tell, with what was checked."""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tools.core import State, Verdict, duration, moment
from tools.core.output import count, short
from tools.job.diagnosis import (
    admission,
    autoscaling,
    deleted_pods,
    failures,
    hangs,
    no_steps,
    performance,
    scheduling,
    startup,
)
from tools.job.diagnosis.cause import Cause, Rule
from tools.job.metrics import progress
from tools.job.snapshot.live_job import LEDGER
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.snapshot import Snapshot
from training.run.directory import objects

# Every rule looks on its own. The layers of the causes say which of them explains the others.
RULES: tuple[Rule, ...] = (
    *(admission.suspended, admission.gang, admission.operator, admission.refused),
    *(scheduling.claims, scheduling.gated, scheduling.scheduler, scheduling.unschedulable),
    *(startup.references, startup.images, startup.container_errors, startup.mounts),
    *(failures.failures, deleted_pods.ended, no_steps.ended),
    *(hangs.lost_nodes, hangs.unhealthy_nodes, hangs.network, hangs.hang, hangs.waits, hangs.kept_alive),
    *(
        performance.not_finite,
        performance.named_straggler,
        performance.straggler,
        performance.data_wait,
        performance.slow_network,
    ),
    performance.slowdown,
    performance.slower_than_planned,
    performance.low_use,  # last: only if none of the other causes of slowness is found
)
NEW = 60.0  # seconds that a pod has to get a node, and a container to start
PULL = 1800.0  # seconds that the pull of a large image may take
IMPORTS = 180.0  # seconds that Python may take to import torch from a slow disk without output
MOST_RETRIES = 20  # that are told
QUIET = 300.0  # seconds without a new line after which a log does not show that a process lives
NAMES = {State.PASS: "healthy", State.FAIL: "cause", State.CANNOT_TELL: "cannot tell"}


@dataclass(frozen=True)
class Explanation:
    """The answer. `causes` are in order: the first explains the job. `checked` is what the answer rests on,
    `retries` what was tried again before, each with its cause.

    The state is PASS for a healthy job, and FAIL if a cause was found.
    """

    state: State
    summary: str
    causes: list[Cause] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The state as it is printed: healthy, cause or cannot tell."""
        return NAMES[self.state]

    @property
    def verdict(self) -> Verdict:
        if not self.causes:
            return Verdict(self.state, self.summary, self.checked, details=self._details())
        first = self.causes[0]
        summary = f"{first.kind}: {first.summary}"
        return Verdict(self.state, summary, first.evidence, first.remedy, self._details())

    def _details(self) -> dict[str, Any]:
        return {
            "state": self.name,
            "cause": self.causes[0].kind if self.causes else None,
            "causes": [cause.as_dict() for cause in self.causes],
            "retries": self.retries,
            "looked_at": self.checked,
        }


def explain(snapshot: Snapshot, rules: Iterable[Rule] = RULES) -> Explanation:
    """Apply every rule, and order what the rules find."""
    return replace(_explained(snapshot, rules), retries=list(_retried(snapshot)))


def _explained(snapshot: Snapshot, rules: Iterable[Rule]) -> Explanation:
    checked = _checked(snapshot)
    if done := snapshot.condition("Succeeded"):
        if idle := list(no_steps.ended(snapshot)):
            return Explanation(State.FAIL, idle[0].summary, idle, checked)
        return Explanation(State.PASS, f"succeeded at {done.get('lastTransitionTime')}", checked=checked)
    causes = sorted((cause for rule in rules for cause in rule(snapshot)), key=lambda cause: cause.order)
    if causes:
        first = {cause.kind: cause for cause in reversed(causes)}
        return Explanation(State.FAIL, causes[0].summary, sorted(first.values(), key=causes.index), checked)
    if healthy := _healthy(snapshot):
        return Explanation(State.PASS, healthy, checked=checked)
    return Explanation(State.CANNOT_TELL, _unclear(snapshot), checked=checked)


def _healthy(snapshot: Snapshot) -> str | None:
    """Return the evidence of progress, None if there is none."""
    if snapshot.condition("Failed"):
        return None
    pods = snapshot.pods
    age = snapshot.age(moment(snapshot.job["metadata"].get("creationTimestamp"))) or 0.0
    if len(pods) < snapshot.replicas and age < NEW:
        return f"starting: {len(pods)} of {count(snapshot.replicas, 'pod')} created"
    if len(pods) < snapshot.replicas and progress.of(snapshot).step is None:
        return _preparing(snapshot)
    waiting = [pod for pod in pods if not (pod.running or pod.done)]
    return _starting(snapshot, waiting) if waiting else _moving(snapshot)


def _preparing(snapshot: Snapshot) -> str | None:
    """Return which pod prepares the training while no rank exists, None if that takes too long in silence."""
    running = [pod for pod in snapshot.before_training if pod.running]
    if snapshot.training_pods or not running:
        return None
    age = snapshot.age(running[0].started) or 0.0
    quiet = snapshot.age(hangs.newest_line(snapshot))
    prepares = f"{running[0].short} has been running for {duration(age)}, and the ranks start after it"
    return prepares if age < PULL or (quiet is not None and quiet < QUIET) else None


def _starting(snapshot: Snapshot, waiting: list[JobPod]) -> str | None:
    """Return what the pods that do not run yet are doing, None if that takes too long."""
    for pod in waiting:
        age = snapshot.age(pod.created) or 0.0
        if pod.deleted:
            # The deletionTimestamp includes the grace period.
            late = snapshot.age(moment(pod.item["metadata"]["deletionTimestamp"])) or 0.0
            return f"{pod.short} is being deleted and will be replaced" if late < NEW else None
        if pod.node is None:
            return _scheduling(snapshot, pod, age)
        if init := pod.running_init:
            since = snapshot.age(init[1]) or 0.0
            running = f"{pod.short}: init container {init[0]} has been running for {duration(since)}"
            return running if since < PULL else None
        events = snapshot.events("Pod", pod.name)
        reasons = [event.get("reason") for event in events if event.get("type") != "Warning"]
        if reasons and reasons[-1] == "Pulling" and age < PULL:
            return f"{pod.short} has been pulling its image for {duration(age)}"
        if age < NEW:
            return f"{pod.short} has been starting for {duration(age)}"
    return None


def _scheduling(snapshot: Snapshot, pod: JobPod, age: float) -> str | None:
    """Return what a pod without a node waits for, None if it waits too long."""
    if promise := autoscaling.promised(snapshot, pod):
        return promise
    creating = [name for name in claim_names(pod) if scheduling.provisioning(snapshot, name)]
    if creating:
        return f"{pod.short} waits for the volume of claim {creating[0]}, which is being created"
    return f"{pod.short} has waited for a node for {duration(age)}" if age < NEW else None


def _moving(snapshot: Snapshot) -> str | None:
    """Return the evidence of progress of the containers that run now. Traces of earlier ones do not count."""
    now = progress.of(snapshot)
    pods = [pod for pod in snapshot.pods if pod.running]
    newest = max((pod.started for pod in pods if pod.started), default=None)
    age = snapshot.age(newest) or 0.0
    hosts = {pod.name for pod in snapshot.pods}
    beats = [beat for beat in now.beats if beat.phase == "done" or hangs.is_current(beat, pods)]
    missing = [beat for beat in now.beats if beat.host in hosts and beat not in beats]
    if beats and not (missing and age > IMPORTS):
        oldest = min(beats, key=lambda beat: beat.time)
        silent = now.now.timestamp() - oldest.time
        if silent <= progress.limits(snapshot).for_(oldest):
            step = f" step {now.step}" if now.step is not None else ""
            return f"{beats[0].phase}{step}, every rank wrote a heartbeat within {duration(silent)}"
        return None
    last = now.last
    if last is not None and last.time is not None and (newest is None or last.time >= newest.timestamp()):
        silent = now.now.timestamp() - last.time
        if silent <= max(QUIET, 20 * _pace(now)):
            return f"step {last.step}, {duration(silent)} ago ({now.source})"
        return None
    quiet = snapshot.age(hangs.newest_line(snapshot))
    if quiet is not None and quiet < QUIET:
        return f"running for {duration(age)}, no step yet, the last line was written {duration(quiet)} ago"
    return f"running for {duration(age)}, too new for a sign of life" if age < IMPORTS else None


def _pace(now: progress.Progress) -> float:
    """Return the longest time between two of the newest steps in seconds, 0 if it is unknown."""
    times = [record.time for record in now.records if record.time is not None][-20:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(gaps, default=0.0)


def _unclear(snapshot: Snapshot) -> str:
    """Return what is known of a job that no cause explains."""
    if snapshot.condition("Failed"):
        return "the job has failed, and nothing that is left shows why"
    waiting = [pod for pod in snapshot.pods if not (pod.running or pod.done)]
    if waiting:
        pod = waiting[0]
        age = snapshot.age(pod.created) or 0.0
        room = scheduling.room(snapshot, pod) if pod.node is None else None
        return f"{pod.short} has been {pod.phase} for {duration(age)}: {room or 'no obstacle was found'}"
    for pod in (one for one in snapshot.pods if one.deleted):
        late = duration(snapshot.age(moment(pod.item["metadata"]["deletionTimestamp"])) or 0.0)
        return f"{pod.short} should have ended {late} ago: its node, a volume or a finalizer may hold it"
    now = progress.of(snapshot)
    if now.moved is not None:
        silent = (now.now - now.moved).total_seconds()
        return f"no step for {duration(silent)}: the job hangs, or is in a long phase that leaves no trace"
    return "pods are running, but there is no evidence of progress"


def _checked(snapshot: Snapshot) -> list[str]:
    """Return what the answer rests on, and what could not be seen."""
    pods = snapshot.pods
    phases = ", ".join(f"{pod.short} {pod.phase}" for pod in pods[:4])
    rest = f" and {len(pods) - 4} more" if len(pods) > 4 else ""
    found = [
        f"{count(len(pods), 'pod')} of {snapshot.replicas}: {phases or 'none'}{rest}",
        f"{count(len(snapshot.of('Node')), 'node')}, {count(len(snapshot.of('Event')), 'event')},"
        f" {count(len(snapshot.logs), 'log')}, progress from {progress.of(snapshot).source}",
    ]
    return [*found, *_skipped(snapshot), *(f"not seen: {what}: {reason}" for what, reason in snapshot.unseen.items())]


def _retried(snapshot: Snapshot) -> Iterator[str]:
    """Yield each retry with its cause: what process 1 decided, by the run's ledger, and attempts of the whole job."""
    kept = (snapshot.run or {}).get("retries") or {}
    for one in sorted(kept.values(), key=lambda one: one.get("time") or 0)[-MOST_RETRIES:]:
        where = f"rank {one.get('rank')} on {short(one.get('host'))} at step {one.get('step')}"
        refusal, start = one.get("refusal"), f"start {one.get('count')} of {one.get('most')} in the pods"
        follows = f"no start followed, because {short(refusal)}" if refusal else start
        yield f"{follows}, after {short(one.get('class'))}: {where}: {short(one.get('message'))}"
    text = (snapshot.live.top["metadata"].get("annotations") or {}).get(LEDGER, "")
    for number, one in enumerate(_parsed(text)[-MOST_RETRIES:], start=1):
        why, changed = f"{short(one.get('cause'))}: {short(one.get('evidence'))}", short(one.get("changed"))
        yield f"attempt {number} of the whole job ended at {short(one.get('ended'))}: {why}; the next changed {changed}"


def _parsed(text: str) -> list[dict[str, Any]]:
    """Return the objects of a ledger, which others can write; empty if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return []


def _skipped(snapshot: Snapshot) -> Iterator[str]:
    """Yield what train.on_nan and train.on_spike did last, and how often, by the run's ledger."""
    lines = objects((snapshot.run or {}).get("skipped") or [])
    if not lines:
        return
    last = lines[-1]
    rolled = sum(line.get("action") == "rollback" for line in lines)
    back = f", back to step {short(last.get('restored'))}" if last.get("action") == "rollback" else ""
    yield (
        f"{count(rolled, 'rollback')} and {count(len(lines) - rolled, 'skipped step')} by train.on_nan and on_spike;"
        f" the last at step {short(last.get('step'))}{back}: {short(last.get('reason'))}; nothing was learned of"
        f" samples {short(last.get('first'))} to {short(last.get('end'))} (skipped.jsonl)"
    )
