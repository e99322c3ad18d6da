"""What the scheduler says of a pod that has no node, for the rules that `node_fit` does not compute."""

from tools.job.diagnosis import autoscaling, signs
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot

# Seconds after which kube-scheduler has tried a pod again (podMaxBackoffSeconds): until then its message may
# be about a state that has passed.
BACKOFF = 10.0


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


def refusal(snapshot: Snapshot, pod: JobPod, prefix: str) -> Cause | None:
    """Return the cause that the scheduler's message names; None for a new pod and for other messages."""
    told = message(snapshot, pod)
    if (snapshot.age(pod.created) or 0.0) < BACKOFF:
        return None
    if sign := signs.first("scheduler", told):
        refusals = autoscaling.refusals(snapshot, pod)
        evidence = [short(f"{pod.short}: the scheduler says: {told}"), *refusals]
        return Cause(
            sign.cause, Layer.BLOCKED, f"{prefix}: {sign.says}", evidence, pod.name,
            at=pod.created, advice=autoscaling.advice(refusals) or sign.fix,
        )  # fmt: skip
    return None
