"""What queues and gang schedulers say of a job: Kueue, Volcano, KAI, the PodGroups of scheduler-plugins."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from tools.core.timestamps import moment
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.resources import name_of, shown
from tools.job.snapshot.kinds import QUEUE_LABEL
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.manifests import Object
from tools.kube.quantity import amount

KAI_QUEUE = ("kai.scheduler/queue", "runai/queue")  # labels of pods
GROUP_MARKS = ("pod-group-name", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name")
WORKLOAD_AFTER = 30.0  # seconds after which Kueue has made its Workload of a job
WAITS = (None, "", "Pending", "Inqueue", "PreScheduling", "Scheduling", "Unknown")
STOPPED = ("Hold", "HoldAndDrain")


def kueue(snapshot: Snapshot, queue: str) -> tuple[list[str], str | None]:
    """Return why Kueue has not let the job in, in lines, and what to do where that is known."""
    found = [f"label {QUEUE_LABEL}: {queue}"]
    local = snapshot.find("LocalQueue", queue)
    if snapshot.saw("LocalQueue") and local is None:
        names = ", ".join(one["metadata"]["name"] for one in snapshot.of("LocalQueue")[:4]) or "none"
        line = f"there is no LocalQueue {queue} in namespace {snapshot.namespace}; there are: {names}"
        return [*found, line], "name a queue that is there, or make this one"
    closed = [*_closed("LocalQueue", local), *_cluster_queue(snapshot, local)]
    workload, lines, advice = _workload(snapshot)
    if closed:
        return [*found, *closed, *lines], "start the queue again: its condition Active says what it lacks"
    age = snapshot.age(moment(snapshot.job["metadata"].get("creationTimestamp"))) or 0.0
    if snapshot.saw("Workload") and workload is None and age > WORKLOAD_AFTER:
        line = "Kueue has made no Workload of the job"
        return [*found, line], "does Kueue run, and is its integration kubeflow.org/pytorchjob switched on?"
    return [*found, *lines], advice


def _closed(kind: str, queue: Object | None) -> list[str]:
    """Return why a queue lets nobody in: stopped by a person, or not whole."""
    spec, name = (queue or {}).get("spec") or {}, ((queue or {}).get("metadata") or {}).get("name")
    found = [f"{kind} {name}: stopPolicy {spec['stopPolicy']}"] if spec.get("stopPolicy") in STOPPED else []
    for one in ((queue or {}).get("status") or {}).get("conditions") or []:
        if one["type"] == "Active" and one["status"] != "True":
            found.append(short(f"{kind} {name} is not active: {one.get('reason')}: {one.get('message', '')}"))
    return found


def _cluster_queue(snapshot: Snapshot, local: Object | None) -> list[str]:
    name = ((local or {}).get("spec") or {}).get("clusterQueue")
    if not name or not snapshot.saw("ClusterQueue"):
        return []
    found = snapshot.find("ClusterQueue", name)
    return _closed("ClusterQueue", found) if found else [f"there is no ClusterQueue {name}"]


def _workload(snapshot: Snapshot) -> tuple[Object | None, list[str], str | None]:
    """Return Kueue's Workload of the job, what it says, and what to do."""
    for workload in snapshot.of("Workload"):
        if snapshot.uid in [owner.get("uid") for owner in workload["metadata"].get("ownerReferences") or []]:
            return workload, *_said(workload)
    return None, [], None


def _said(workload: Object) -> tuple[list[str], str | None]:
    name, status = f"Workload {workload['metadata']['name']}", workload.get("status") or {}
    if (workload.get("spec") or {}).get("active") is False:
        line = f"{name} is deactivated: spec.active is false"
        told = [one for one in status.get("conditions") or [] if one["type"] in ("Evicted", "Requeued")]
        why = [short(f"{one.get('reason')}: {one.get('message', '')}") for one in told[-1:]]
        return [line, *why], "mend what it says, then set spec.active of the Workload to true"
    checks = [one for one in status.get("admissionChecks") or [] if one.get("state") != "Ready"]
    lines = [
        short(f"admission check {one['name']}: {one.get('state')}: {one.get('message', '')}")
        for one in checks
    ]
    for one in status.get("conditions") or []:
        waits = one["type"] in ("QuotaReserved", "Admitted") and one["status"] != "True"
        if waits or (one["type"] == "Evicted" and one["status"] == "True"):
            lines.append(short(f"{name}: {one.get('message', '')}"))
    advice = "its quota is reserved: the admission check's own controller says what it waits for"
    return list(dict.fromkeys(lines)), advice if checks else None


def group(snapshot: Snapshot) -> Object | None:
    """Return the PodGroup of the job: of its name, owned by it, or named by its pods."""
    marks = {
        str(value)
        for pod in snapshot.pods
        for key, value in {**(pod.item["metadata"].get("annotations") or {}), **pod.labels}.items()
        if key.endswith(GROUP_MARKS)
    }
    for one in snapshot.of("PodGroup"):
        owners = [owner.get("uid") for owner in one["metadata"].get("ownerReferences") or []]
        if one["metadata"]["name"] in (snapshot.name, *marks) or snapshot.uid in owners:
            return one
    return None


def shut(snapshot: Snapshot, pods: list[JobPod]) -> Iterator[Cause]:
    """The gang's queue does not exist, is closed, or has given out all that it may give."""
    gang = group(snapshot) or {}
    name = _queue_name(gang, pods)
    if name is None or not snapshot.saw("Queue"):
        return
    queue = snapshot.find("Queue", name)
    names = ", ".join(one["metadata"]["name"] for one in snapshot.of("Queue")[:4]) or "none"
    children = [one for one in snapshot.of("Queue") if _parent(one) == name]
    state = ((queue or {}).get("status") or {}).get("state")
    if queue is None:
        facts = [f"there is no Queue {name}; there are: {names}"]
    elif state in ("Closed", "Closing"):
        facts = [f"Queue {name}: state {state}"]
    elif children and KAI_QUEUE[0] in {key for pod in pods for key in pod.labels}:
        facts = [
            f"Queue {name} has queues below it ({children[0]['metadata']['name']}): only those take pods"
        ]
    else:
        facts = list(_full(queue, gang))
    if facts:
        summary = f"the gang's queue {name} does not let it in"
        advice = None if queue else "name a queue that is there, or make this one"
        yield Cause("queue", Layer.JOB, summary, facts, advice=advice)


def _parent(queue: Object) -> str | None:
    spec = queue.get("spec") or {}
    return spec.get("parentQueue") or spec.get("parent")


def _queue_name(gang: Object, pods: list[JobPod]) -> str | None:
    """Return the queue's name: of the PodGroup, or by the pods' label; Volcano has one called default."""
    labelled = (pod.labels.get(key) for pod in pods for key in KAI_QUEUE)
    name = (gang.get("spec") or {}).get("queue") or next(filter(None, labelled), None)
    volcano = "volcano" in str(gang.get("apiVersion")) or any(
        pod.spec.get("schedulerName") == "volcano" for pod in pods
    )
    return name or ("default" if volcano else None)


def _full(queue: Object, gang: Object) -> Iterator[str]:
    """Yield the resources of which a queue has less left than the gang needs at least."""
    status, spec = queue.get("status") or {}, queue.get("spec") or {}
    used = status.get("allocated") or {}
    for resource, wanted in ((gang.get("spec") or {}).get("minResources") or {}).items():
        most = amount((spec.get("capability") or {}).get(resource))
        need, held = amount(wanted) or Decimal(0), amount(used.get(resource, 0)) or Decimal(0)
        if most is not None and need > most - held:
            yield (
                f"Queue {queue['metadata']['name']}: {shown(resource, held)} of {shown(resource, most)}"
                f" {name_of(resource)} given out, the gang needs {shown(resource, need)}"
            )
    limit = amount(((spec.get("resources") or {}).get("gpu") or {}).get("limit"))  # of KAI; -1 is none
    held = amount(used.get("nvidia.com/gpu", 0)) or Decimal(0)
    if limit is not None and 0 <= limit <= held:
        yield f"Queue {queue['metadata']['name']}: all {shown('gpu', limit)} GPUs of its limit are given out"


def waits(snapshot: Snapshot) -> Iterator[Cause]:
    """The gang scheduler says that it does not place the group, and the arithmetic does not show why."""
    gang = group(snapshot)
    if gang is None:
        return
    status = gang.get("status") or {}
    every = [*(status.get("conditions") or []), *(status.get("schedulingConditions") or [])]
    said = [
        one for one in every if "nschedulable" in str(one.get("type")) and one.get("status", "True") == "True"
    ]
    if status.get("phase") not in WAITS or not (said or status.get("phase") == "Pending"):
        return
    told = [short(f"{one.get('reason') or one['type']}: {one.get('message', '')}") for one in said[-1:]]
    name, least = gang["metadata"]["name"], (gang.get("spec") or {}).get("minMember")
    evidence = [f"PodGroup {name}: phase {status.get('phase') or 'none'}, minMember {least}", *told]
    summary = "the gang scheduler does not place the group, although each pod would fit"
    yield Cause("queue", Layer.BLOCKED, summary, evidence)
