"""Causes of a pod that has a node, but whose container does not start."""

import re
from collections.abc import Iterator

from tools.job.diagnosis import signs
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object

PULL_REASONS = re.compile("ErrImage|ImagePullBackOff|InvalidImageName|RegistryUnavailable|ImageInspectError")
# Complaints that pass: a kubelet may request what a new pod mounts before the API server's authorizer, or the
# kubelet's own cache, knows the pod. It tries again after ten to fifteen seconds.
PASSING = re.compile(r"no relationship found between node|object \S+ not registered|failed to sync \w+ cache")
# Other complaints about new pods and nodes pass too, when a driver has registered or an address is attached.
PASSES = 30.0  # seconds that a pod has been on its node
TRIES = 4  # within those seconds
# The tables of signs.yaml for the kubelet's complaints; the last row of the last table takes every message.
TABLES = dict.fromkeys(("FailedMount", "FailedAttachVolume", "FailedMapVolume"), "container-config volume")
TABLES |= dict.fromkeys(("FailedCreatePodSandBox", "NetworkNotReady"), "sandbox")
DISK_FULL = "free space on the node's disk, or start nodes with a larger one"


def blocked(snapshot: Snapshot) -> list[JobPod]:
    """Return the pods that have a node, and whose container has not started or waits again."""
    if is_over(snapshot):
        return []
    return [
        pod
        for pod in snapshot.pods
        if pod.node and not pod.running and not pod.ended_for_good and pod.phase in ("Pending", "Running")
    ]


def images(snapshot: Snapshot) -> Iterator[Cause]:
    """The image cannot be pulled."""
    for pod in blocked(snapshot):
        reason, message = pod.waiting
        if not PULL_REASONS.match(reason):
            continue
        image = pod.waiting_image
        if reason == "ErrImageNeverPull":
            evidence = [short(f"{pod.short}: {reason}: {message}")]
            summary = f"the node {pod.node} has no image {image}, and the pod may not pull it"
            yield Cause("image-absent", Layer.BLOCKED, summary, evidence, pod.name)
            return
        said = _pull_answer(snapshot, pod, message)
        kind, summary = _pull_kind(reason, said)
        evidence = [f"image {image}", short(f"{pod.short} on {pod.node}: {reason}: {said}")]
        advice = DISK_FULL if kind == "storage-full" else None
        yield Cause(kind, Layer.BLOCKED, summary, evidence, pod.name, at=pod.created, advice=advice)
        return


def _pull_answer(snapshot: Snapshot, pod: JobPod, message: str) -> str:
    """Return the registry's answer. During a back-off, older kubelets have it only in events."""
    if "rpc error" in message or "failed to" in message or not message.startswith("Back-off"):
        return message
    answers = [
        str(event.get("message", ""))
        for event in snapshot.events("Pod", pod.name)
        if event.get("reason") == "Failed" and "Failed to pull image" in str(event.get("message"))
    ]
    return answers[-1] if answers else message


def _pull_kind(reason: str, said: str) -> tuple[str, str]:
    if reason == "InvalidImageName":
        return "image-name", "the image's name is not valid"
    if sign := signs.first("pull", said):
        return sign.cause, sign.says
    return "image-registry", "the image cannot be pulled, for an unknown reason"


def references(snapshot: Snapshot) -> Iterator[Cause]:
    """A ConfigMap or secret that the container needs does not exist."""
    for pod in blocked(snapshot):
        for kind, name, key, used_by in needed(pod.spec):
            if summary := _missing(snapshot, kind, name, key):
                cause = "config-missing" if kind == "ConfigMap" else "secret-missing"
                evidence = [f"{pod.short} needs it for {used_by}"]
                yield Cause(cause, Layer.BLOCKED, summary, evidence, pod.name, at=pod.created)
                return


def _missing(snapshot: Snapshot, kind: str, name: str, key: str | None) -> str | None:
    if not snapshot.saw(kind):
        return None
    item = snapshot.find(kind, name)
    label = "secret" if kind == "Secret" else kind
    if item is None:
        return f"the {label} {name} does not exist in namespace {snapshot.namespace}"
    keys = item.get("keys")
    if keys is None or key is None or key in keys:
        return None
    return f"the {label} {name} has no key {key}, it has {', '.join(sorted(keys)) or 'none'}"


def container_errors(snapshot: Snapshot) -> Iterator[Cause]:
    """The kubelet or the container runtime cannot create or start the container."""
    for pod in blocked(snapshot):
        reason, message = pod.waiting
        if reason not in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            continue
        table = "container-config" if reason == "CreateContainerConfigError" else "container-start"
        kind = signs.cause_of(table, message, "refused")
        evidence = [short(f"{pod.short} on {pod.node}: {reason}: {message}")]
        summary = "the container cannot be created from the pod's spec"
        yield Cause(kind, Layer.BLOCKED, summary, evidence, pod.name, at=pod.created)
        return


def mounts(snapshot: Snapshot) -> Iterator[Cause]:
    """A volume is not mounted, or the pod gets no network. Only the kubelet's events show it."""
    for pod in blocked(snapshot):
        if pod.waiting[0] not in ("", "ContainerCreating"):
            continue
        for event in reversed(snapshot.events("Pod", pod.name)):
            reason, message = event.get("reason"), str(event.get("message", ""))
            if event.get("type") != "Warning":
                break  # the pod has made progress since
            at = event_time(event)
            evidence = [short(f"{pod.short} on {pod.node}: {reason}: {message}")]
            if _passes(snapshot, pod, event):
                break
            tables = TABLES.get(str(reason), "").split()
            if sign := next(filter(None, (signs.first(table, message) for table in tables)), None):
                summary = sign.says or "a volume cannot be mounted"
                yield Cause(sign.cause, Layer.BLOCKED, summary, evidence, pod.name, at=at, advice=sign.fix)
                return


def _passes(snapshot: Snapshot, pod: JobPod, event: Object) -> bool:
    """Return whether a kubelet's complaint may pass: the pod is new, and the kubelet tries again."""
    age = snapshot.age(pod.placed)
    if age is None or age >= PASSES:
        return False
    events = snapshot.events("Pod", pod.name)
    tries = sum(int(one.get("count") or 1) for one in events if one.get("reason") == event.get("reason"))
    return tries < TRIES or PASSING.search(str(event.get("message"))) is not None
