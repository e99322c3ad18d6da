"""Causes before any pod exists: suspended, queued, refused by the API server, or no operator."""

from collections.abc import Iterator
from decimal import Decimal

from tools.core.timestamps import duration, moment
from tools.job.diagnosis import queues, signs
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.resources import formatted, name_of
from tools.job.snapshot.pod import template_specs
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object
from tools.kube.quantity import amounts, quota_keys
from tools.workload.operator_pods import IMAGE
from tools.workload.workload import QUEUE_LABEL, JobState

TOGETHER = 5.0  # seconds in which the operator creates all pods of a job
PATIENCE = 30.0  # seconds after which operator and scheduler must have reacted
# Reasons of the training operator and of Jobs, then of JobSet and Trainer, which make what makes the pods.
FAILED_TO_CREATE = (
    *("FailedCreatePod", "FailedCreateService", "FailedCreate"),
    *("JobCreationFailed", "HeadlessServiceCreationFailed", "TrainJobResourcesCreationFailed"),
)


def is_over(snapshot: Snapshot) -> bool:
    return snapshot.condition("Succeeded") is not None or snapshot.condition("Failed") is not None


def suspended(snapshot: Snapshot) -> Iterator[Cause]:
    """The job waits in a queue, or was suspended."""
    live = snapshot.live
    if is_over(snapshot) or not (live.suspended or live.state == JobState.SUSPENDED):
        return
    queue = (live.top["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    fact = f"{live.title}: {live.suspension}"
    at = moment((snapshot.condition("Suspended") or {}).get("lastTransitionTime"))
    if queue is None:
        yield Cause("suspended", Layer.JOB, "the job is suspended", [fact], at=at, advice=live.resumption)
        return
    found, advice = queues.kueue(snapshot, queue)
    summary = f"Kueue has not admitted the job to queue {queue}"
    evidence = [*found, fact]
    yield Cause("queue", Layer.JOB, summary, evidence, at=at, advice=advice)


def gang(snapshot: Snapshot) -> Iterator[Cause]:
    """A gang scheduler has not admitted the group of pods."""
    if is_over(snapshot):
        return
    pods = snapshot.pods
    if len(pods) < snapshot.replicas or any(pod.node is None for pod in pods):
        yield from queues.gang_queue(snapshot, pods)
    group = queues.group(snapshot)
    status = (group or {}).get("status") or {}
    phase = status.get("phase")
    if len(pods) < snapshot.replicas and group is not None and phase in (None, "Pending"):
        least = (group.get("spec") or {}).get("minMember")
        name = group["metadata"]["name"]
        events = [f"event: {one.get('message')}" for one in snapshot.events("PodGroup", name)]
        conditions = [str(one["message"]) for one in status.get("conditions") or [] if one.get("message")]
        said = [short(one) for one in (*conditions[-1:], *list(dict.fromkeys(events))[-2:])]
        line = f"PodGroup {name}: phase {phase or 'none'}, minMember {least}"
        summary = f"the gang of {least} pods is not admitted to queue {group['spec'].get('queue', 'default')}"
        yield Cause("queue", Layer.JOB, summary, [line, *said], advice=queues.GANG_ADVICE)


def operator(snapshot: Snapshot) -> Iterator[Cause]:
    """The operator has not reacted to the job: it is down, or it does not watch this namespace."""
    age = snapshot.age(moment(snapshot.job["metadata"].get("creationTimestamp"))) or 0.0
    if snapshot.state != JobState.NEW or age < PATIENCE or snapshot.pods:
        return
    evidence = [f"no condition {duration(age)} after the job was created"]
    job, maker, advice = snapshot.workload, "the training operator", None
    if job.kind != "PyTorchJob":
        maker, advice = job.maker, f"restore the controller of {job.resource}: find its pod and read its log"
    elif "others" not in snapshot.unseen:
        evidence += _operator_pods(snapshot)
    yield Cause("operator", Layer.JOB, f"{maker} has not reacted to the job", evidence, advice=advice)


def _operator_pods(snapshot: Snapshot) -> list[str]:
    found = []
    for pod in snapshot.others:
        containers = pod["spec"].get("containers") or []
        if any(IMAGE in str(container.get("image")) for container in containers):
            statuses = (pod.get("status") or {}).get("containerStatuses") or []
            ready = bool(statuses) and all(status.get("ready") for status in statuses)
            state = "Ready" if ready else pod["status"].get("phase", "Unknown")
            name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
            found.append(f"operator pod {name}: {state}")
    return found or ["no pod of the cluster runs a training-operator image"]


def refused(snapshot: Snapshot) -> Iterator[Cause]:
    """The API server refuses the pods that the operator creates."""
    if is_over(snapshot) or len(snapshot.pods) >= snapshot.replicas:
        return
    computed = list(quota(snapshot))
    yield from computed
    events = [event for event in snapshot.job_events() if _refuses(snapshot, event)]
    if not events:
        return
    message = str(events[-1].get("message", ""))
    sign = signs.first("refused-pods", message)
    if sign and (sign.cause != "quota" or not computed):
        evidence = [short(f"event: {message}")]
        yield Cause(sign.cause, Layer.JOB, sign.says, evidence, at=event_time(events[-1]))


def _refuses(snapshot: Snapshot, event: Object) -> bool:
    """Return whether an event reports a refused pod that was not created since.

    A pod of the same name that is still being deleted is not a refusal.
    """
    refusal = event.get("reason") in FAILED_TO_CREATE and event.get("type") == "Warning"
    at = event_time(event)
    made = max((pod.created for pod in snapshot.pods if pod.created), default=None)
    since = at is not None and made is not None and (made - at).total_seconds() > TOGETHER
    return refusal and not since and "already exists" not in str(event.get("message"))


def quota(snapshot: Snapshot) -> Iterator[Cause]:
    """A ResourceQuota has no room for one more pod of the job."""
    wanted = _wanted(snapshot)
    for item in snapshot.of("ResourceQuota"):
        status = item.get("status") or {}
        limits = item.get("spec") or {}
        if limits.get("scopes") or limits.get("scopeSelector"):
            continue  # which pods it counts, only the API server knows
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for key, most in sorted(hard.items()):
            need, left = wanted.get(key), amounts(hard)[key] - amounts(used).get(key, Decimal(0))
            if need is not None and need > left:
                resource = key.removeprefix("requests.").removeprefix("limits.")
                evidence = [
                    f"ResourceQuota {item['metadata']['name']}: {key} {used.get(key, 0)} of {most} used,"
                    f" a pod requests {formatted(resource, need)}"
                ]
                summary = f"the namespace's quota leaves {formatted(resource, left)} {name_of(resource)}"
                yield Cause("quota", Layer.JOB, summary, evidence)
                return


def _wanted(snapshot: Snapshot) -> dict[str, Decimal]:
    """Return what one more pod takes, by each key that a quota can limit."""
    each = [quota_keys(spec) for spec in template_specs(snapshot.workload)]
    return {key: max(one.get(key, Decimal(0)) for one in each) for key in {key for one in each for key in one}}
