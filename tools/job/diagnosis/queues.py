"""What queues and gang schedulers say of a job: Kueue, Volcano, KAI-Scheduler, scheduler-plugins."""

from collections.abc import Iterator
from decimal import Decimal

from tools.core.tables import load
from tools.core.timestamps import moment
from tools.facts.instances import NVIDIA
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.resources import existing, formatted, name_of
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.manifests import Object
from tools.kube.quantity import amount
from tools.workload.workload import QUEUE_LABEL

KAI_QUEUE = ("kai.scheduler/queue", "runai/queue")  # labels of pods
GROUP_MARKS = ("pod-group-name", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name")
WORKLOAD_AFTER = 30.0  # seconds after which Kueue has created its Workload of a job
WAITS = (None, "", "Pending", "Inqueue", "PreScheduling", "Scheduling", "Unknown")  # phases of PodGroups
STOPPED = ("Hold", "HoldAndDrain")
NAME_A_QUEUE = "name an existing queue, or create this one"
GANG_ADVICE = "wait, or check the queue (kubectl get queues,podgroups); a smaller job may start sooner"


def kueue(snapshot: Snapshot, queue: str) -> tuple[list[str], str | None]:
    """Return why Kueue has not admitted the job, in lines of evidence, and the remedy if it is known."""
    evidence = [f"label {QUEUE_LABEL}: {queue}"]
    local = snapshot.find("LocalQueue", queue)
    if snapshot.saw("LocalQueue") and local is None:
        line = f"LocalQueue {queue} does not exist in namespace {snapshot.namespace}"
        return [*evidence, f"{line}; existing: {existing(snapshot, 'LocalQueue')}"], NAME_A_QUEUE
    closed = [*_closed("LocalQueue", local), *_cluster_queue(snapshot, local)]
    workload, lines, advice = _workload(snapshot)
    if closed:
        return [*evidence, *closed, *lines], "start the queue again: its condition Active shows what it lacks"
    age = snapshot.age(moment(snapshot.job["metadata"].get("creationTimestamp"))) or 0.0
    if snapshot.saw("Workload") and workload is None and age > WORKLOAD_AFTER:
        line = "Kueue has not created a Workload for the job"
        return [*evidence, line], f"check that Kueue runs with its integration for {snapshot.live.top['kind']}"
    return [*evidence, *lines], advice


def _closed(kind: str, queue: Object | None) -> list[str]:
    """Return why a queue admits no job: it was stopped, or it is not active."""
    spec, name = (queue or {}).get("spec") or {}, ((queue or {}).get("metadata") or {}).get("name")
    lines = [f"{kind} {name}: stopPolicy {spec['stopPolicy']}"] if spec.get("stopPolicy") in STOPPED else []
    for one in ((queue or {}).get("status") or {}).get("conditions") or []:
        if one["type"] == "Active" and one["status"] != "True":
            lines.append(short(f"{kind} {name} is not active: {one.get('reason')}: {one.get('message', '')}"))
    return lines


def _cluster_queue(snapshot: Snapshot, local: Object | None) -> list[str]:
    name = ((local or {}).get("spec") or {}).get("clusterQueue")
    if not name or not snapshot.saw("ClusterQueue"):
        return []
    queue = snapshot.find("ClusterQueue", name)
    return _closed("ClusterQueue", queue) if queue else [f"ClusterQueue {name} does not exist"]


def _workload(snapshot: Snapshot) -> tuple[Object | None, list[str], str | None]:
    """Return Kueue's Workload of the job, what it says, and the remedy."""
    for workload in snapshot.of("Workload"):
        owners = {owner.get("uid") for owner in workload["metadata"].get("ownerReferences") or []}
        if owners & set(snapshot.live.uids):
            return workload, *_said(workload)
    return None, [], None


def _said(workload: Object) -> tuple[list[str], str | None]:
    name, status = f"Workload {workload['metadata']['name']}", workload.get("status") or {}
    if (workload.get("spec") or {}).get("active") is False:
        line = f"{name} is deactivated: spec.active is false"
        told = [one for one in status.get("conditions") or [] if one["type"] in ("Evicted", "Requeued")]
        why = [short(f"{one.get('reason')}: {one.get('message', '')}") for one in told[-1:]]
        return [line, *why], "fix what it says, then set spec.active of the Workload to true"
    checks = [one for one in status.get("admissionChecks") or [] if one.get("state") != "Ready"]
    advice = "read the log of the admission check's controller: the quota is reserved already" if checks else None
    lines = [short(f"admission check {one['name']}: {one.get('state')}: {one.get('message', '')}") for one in checks]
    for one in status.get("conditions") or []:
        waits = one["type"] in ("QuotaReserved", "Admitted") and one["status"] != "True"
        if waits or (one["type"] == "Evicted" and one["status"] == "True"):
            lines.append(short(f"{name}: {one.get('message', '')}"))
        if one["type"] == "Evicted" and one["status"] == "True" and not checks:
            advice = load("job/tables.yaml")["evicted by Kueue"].get(str(one.get("reason")))
    return list(dict.fromkeys(lines)), advice


def group(snapshot: Snapshot) -> Object | None:
    """Return the PodGroup of the job: it has the job's name, is owned by it, or is named by its pods."""
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


def gang_queue(snapshot: Snapshot, pods: list[JobPod]) -> Iterator[Cause]:
    """The gang's queue does not exist, is closed, or has allocated all its resources."""
    gang = group(snapshot) or {}
    name = _queue_name(gang, pods)
    if name is None or not snapshot.saw("Queue"):
        return
    queue = snapshot.find("Queue", name)
    children = [one for one in snapshot.of("Queue") if _parent(one) == name]
    state = ((queue or {}).get("status") or {}).get("state")
    if queue is None:
        facts = [f"Queue {name} does not exist; existing: {existing(snapshot, 'Queue')}"]
    elif state in ("Closed", "Closing"):
        facts = [f"Queue {name}: state {state}"]
    elif children and KAI_QUEUE[0] in {key for pod in pods for key in pod.labels}:
        child = children[0]["metadata"]["name"]
        facts = [f"Queue {name} is a parent queue: only its children, such as {child}, take pods"]
    else:
        facts = list(_full(queue, gang))
    if facts:
        summary = f"the gang's queue {name} does not admit it"
        yield Cause("queue", Layer.JOB, summary, facts, advice=GANG_ADVICE if queue else NAME_A_QUEUE)


def _parent(queue: Object) -> str | None:
    spec = queue.get("spec") or {}
    return spec.get("parentQueue") or spec.get("parent")


def _queue_name(gang: Object, pods: list[JobPod]) -> str | None:
    """Return the queue of the PodGroup, or of the pods' label; Volcano's default one is called default."""
    labelled = (pod.labels.get(key) for pod in pods for key in KAI_QUEUE)
    name = (gang.get("spec") or {}).get("queue") or next(filter(None, labelled), None)
    volcano = "volcano" in str(gang.get("apiVersion")) or any(
        pod.spec.get("schedulerName") == "volcano" for pod in pods
    )
    return name or ("default" if volcano else None)


def _full(queue: Object, gang: Object) -> Iterator[str]:
    """Yield the resources of which a queue has less left than the gang needs at least."""
    status, spec = queue.get("status") or {}, queue.get("spec") or {}
    name, used = queue["metadata"]["name"], status.get("allocated") or {}
    for resource, wanted in ((gang.get("spec") or {}).get("minResources") or {}).items():
        most = amount((spec.get("capability") or {}).get(resource))
        need, held = amount(wanted) or Decimal(0), amount(used.get(resource, 0)) or Decimal(0)
        if most is not None and need > most - held:
            yield (
                f"Queue {name}: {formatted(resource, held)} of {formatted(resource, most)}"
                f" {name_of(resource)} allocated, the gang needs {formatted(resource, need)}"
            )
    limit = amount(((spec.get("resources") or {}).get("gpu") or {}).get("limit"))  # of KAI; -1 is none
    held = amount(used.get(NVIDIA, 0)) or Decimal(0)
    if limit is not None and 0 <= limit <= held:
        yield f"Queue {name}: all {formatted('gpu', limit)} GPUs of its limit are allocated"


def gang_waits(snapshot: Snapshot) -> Iterator[Cause]:
    """The gang scheduler does not place the group, and the arithmetic does not show why."""
    gang = group(snapshot)
    if gang is None:
        return
    status = gang.get("status") or {}
    conditions = [*(status.get("conditions") or []), *(status.get("schedulingConditions") or [])]
    said = [one for one in conditions if "nschedulable" in str(one.get("type")) and one.get("status", "True") == "True"]
    if status.get("phase") not in WAITS or not (said or status.get("phase") == "Pending"):
        return
    told = [short(f"{one.get('reason') or one['type']}: {one.get('message', '')}") for one in said[-1:]]
    name, least = gang["metadata"]["name"], (gang.get("spec") or {}).get("minMember")
    evidence = [f"PodGroup {name}: phase {status.get('phase') or 'none'}, minMember {least}", *told]
    summary = "the gang scheduler does not place the group, although each pod would fit"
    yield Cause("queue", Layer.BLOCKED, summary, evidence, advice=GANG_ADVICE)
