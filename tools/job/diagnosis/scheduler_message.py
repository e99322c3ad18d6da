"""What the scheduler says of a pod that has no node.

It counts for the rules that `node_fit` does not compute, and for all rules where the nodes were not seen.
"""

import re

from tools.job.diagnosis import autoscaling, signs
from tools.job.diagnosis.cause import CAUSES, Cause, Layer, short
from tools.job.diagnosis.resources import name_of, rank
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot

# Seconds after which kube-scheduler has tried a pod again (podMaxBackoffSeconds): until then its message may
# be about a state that has passed.
BACKOFF = 10.0
INSUFFICIENT = re.compile(r"\bInsufficient ([\w./-]*\w)")


def message(snapshot: Snapshot, pod: JobPod) -> str:
    """Return the scheduler's message, without what it says of preemption; empty where it says nothing.

    It is that of the pod's condition, else of the newest event.
    """
    condition = pod.condition("PodScheduled") or {}
    said = [
        event.get("message")
        for event in snapshot.events("Pod", pod.name)
        if event.get("reason") == "FailedScheduling" and not autoscaling.from_karpenter(event)
    ]
    text = str(condition.get("message") or (said[-1] if said else None) or "")
    return text.partition(" preemption: ")[0]


def refusal(snapshot: Snapshot, pod: JobPod, prefix: str, *, computed: bool = True) -> Cause | None:
    """Return the cause that the scheduler's message names; None for a new pod and for other messages.

    `computed`: its common rules were computed from the nodes, so that the message does not count for them.
    """
    told = message(snapshot, pod)
    if (snapshot.age(pod.created) or 0.0) < BACKOFF:
        return None
    found = _named(told) or (None if computed else _common(told))
    if found is None:
        return None
    kind, says, fix = found
    refusals = autoscaling.refusals(snapshot, pod)
    evidence = [short(f"{pod.short}: the scheduler says: {told}"), *refusals]
    return Cause(
        kind, Layer.BLOCKED, f"{prefix}: {says}", evidence, pod.name,
        at=pod.created, advice=autoscaling.advice(refusals) or fix,
    )  # fmt: skip


def _named(told: str) -> tuple[str, str, str | None] | None:
    """Return kind, meaning and remedy of a message about a rule that is not computed."""
    sign = signs.first("scheduler", told)
    return (sign.cause, sign.says, sign.fix) if sign else None


def _common(told: str) -> tuple[str, str, str | None] | None:
    """Return the same of a message about the other rules; a resource that is missing comes first."""
    if missing := min(INSUFFICIENT.findall(told), key=rank, default=None):
        return f"unschedulable/{missing}", f"not enough {name_of(missing)} are free on any node", None
    sign = signs.first("scheduler-common", told)
    return (sign.cause, CAUSES[sign.cause]["says"], None) if sign else None
