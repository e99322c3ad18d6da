"""What the scheduler says of a pod that has no node, for the rules that `node_fit` does not compute."""

from __future__ import annotations

import re

from tools.job.diagnosis import autoscaling
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot

# Seconds after which kube-scheduler has tried a pod again (podMaxBackoffSeconds): until then its message may
# be about a state that has passed.
BACKOFF = 10.0
# Reasons of kube-scheduler's plugins (kubernetes pkg/scheduler/framework/plugins, v1.36): kind, pattern,
# summary, remedy. Volcano and KAI-Scheduler call the same plugins. The plugins are dynamicresources (which
# has a specific reason before the general ones), volumerestrictions, nodevolumelimits, nodeports,
# interpodaffinity and podtopologyspread.
REASONS = (
    ("device-place", r"resourceclaim not available on the node",
     "the devices of the pod's ResourceClaim are on a node that the pod cannot use",
     "delete the ResourceClaim, so that the scheduler allocates other devices"),
    ("resource-claim", r"cannot allocate all claims|device class \S+ does not exist|resource ?claim\b",
     "the devices of the pod's ResourceClaim cannot be allocated",
     "check that the driver runs on the nodes and publishes such devices: kubectl get resourceslices"),
    ("volume", r"ReadWriteOncePod access mode|node\(s\) had no available disk",
     "another pod uses the pod's volume exclusively",
     "use a claim with the access mode ReadWriteMany, or a separate claim"),
    ("volume-limit", r"exceed max volume count",
     "the nodes have their maximum number of volumes attached",
     "detach unused volumes, use fewer volumes in each pod, or add nodes"),
    ("ports", r"didn't have free ports for the requested pod ports",
     "another pod uses the host port that the pod requests",
     "remove hostPort and hostNetwork from the pod"),
    ("apart", r"anti-affinity rules",
     "an anti-affinity rule, of this pod or of a running one, excludes the nodes that have room",
     "add nodes, or remove the anti-affinity rule"),
    ("together", r"didn't match pod affinity rules",
     "the nodes that have room do not run the pods that the pod's affinity requires",
     "start those pods first, or remove the pod affinity"),
    ("spread", r"didn't match pod topology spread constraints",
     "the nodes that have room would violate the pod's topology spread constraints",
     "free capacity where the fewest pods run, raise maxSkew, or set whenUnsatisfiable: ScheduleAnyway"),
)  # fmt: skip


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
    for kind, pattern, summary, remedy in REASONS:
        if re.search(pattern, told):
            refusals = autoscaling.refusals(snapshot, pod)
            evidence = [short(f"{pod.short}: the scheduler says: {told}"), *refusals]
            return Cause(
                f"unschedulable/{kind}", Layer.BLOCKED, f"{prefix}: {summary}", evidence, pod.name,
                at=pod.created, advice=autoscaling.advice(refusals) or remedy,
            )  # fmt: skip
    return None
