"""Causes of a pod that has a node and whose container does not start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object

PULL_REASONS = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("RegistryUnavailable", "ImageInspectError"),
)
# A kubelet may ask for what a new pod mounts before the API server's authoriser, or its own cache, knows of
# the pod: it asks again after ten to fifteen seconds, and gets it.
PASSING = re.compile(r"no relationship found between node|object \S+ not registered|failed to sync \w+ cache")
# So does much of what a new pod or a new node meets: a driver that registers, an address that is attached.
PASSES = 30.0  # seconds that a pod has been on its node
TRIES = 4  # within those seconds
# What registries and container runtimes answer, from the special to the general.
PULL_ANSWERS = (
    (
        "image-rate-limit",
        r"(?i)toomanyrequests|rate limit|429 too many",
        "the registry's rate limit is reached",
    ),
    (
        "image-architecture",
        r"(?i)no match for platform|no matching manifest|does not match the specified platform",
        "the image is not built for the node's processor",
    ),
    (
        "image-auth",
        r"(?i)unauthorized|authentication required|access denied|403 forbidden|no basic auth"
        r"|authorization failed|denied: |requires? 'docker login'|insufficient_scope|402 payment required"
        r"|is not authorized to perform",
        "the registry does not let the node have the image: it is private, or not there",
    ),
    (
        "image-registry",
        r"(?i)no such host|i/o timeout|connection refused|dial tcp|\btls\b|x509|deadline exceeded|EOF$"
        r"|no route to host|temporary failure in name resolution|server gave HTTP response"
        r"|5\d\d (?:internal|bad|service)",
        "the registry is not reached from the node",
    ),
    ("storage-full", r"(?i)no space left on device", "the node's disk has no room for the image"),
    (
        "image-name",
        r"(?i)not found|manifest unknown|name unknown|did not resolve to an alias|does not exist"
        r"|invalid reference|couldn't parse",
        "the registry has no such image",
    ),
)


def blocked(snapshot: Snapshot) -> list[JobPod]:
    """Return the pods that have a node and do not run yet, or whose container waits again."""
    if is_over(snapshot):
        return []
    return [
        pod
        for pod in snapshot.pods
        if pod.node and not pod.running and not pod.ended_for_good and pod.phase in ("Pending", "Running")
    ]


def images(snapshot: Snapshot) -> Iterator[Cause]:
    """The image is not pulled."""
    for pod in blocked(snapshot):
        reason, message = pod.waiting
        if reason not in PULL_REASONS:
            continue
        image = str(pod.container_spec.get("image"))
        if reason == "ErrImageNeverPull":
            evidence = [short(f"{pod.short}: {reason}: {message}")]
            summary = f"the node {pod.node} has no image {image}, and the pod may not pull it"
            yield Cause("image-absent", Layer.BLOCKED, summary, evidence, pod.name)
            return
        said = _pull_answer(snapshot, pod, message)
        kind, summary = _pull_kind(reason, said)
        evidence = [f"image {image}", short(f"{pod.short} on {pod.node}: {reason}: {said}")]
        advice = (
            "make room on the node's disk, or start nodes with a larger one"
            if kind == "storage-full"
            else None
        )
        yield Cause(kind, Layer.BLOCKED, summary, evidence, pod.name, at=pod.created, advice=advice)
        return


def _pull_answer(snapshot: Snapshot, pod: JobPod, message: str) -> str:
    """Return the registry's answer; during a back-off older kubelets leave it in the events only."""
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
        return "image-name", "the image's name is not one that a registry could have"
    for kind, pattern, summary in PULL_ANSWERS:
        if re.search(pattern, said):
            return kind, summary
    return "image-registry", "the image is not pulled, for a reason that is not known here"


def references(snapshot: Snapshot) -> Iterator[Cause]:
    """A ConfigMap or secret that the container needs does not exist: looked up, not read from a message."""
    for pod in blocked(snapshot):
        for kind, name, key, where in needed(pod.spec):
            missing = _missing(snapshot, kind, name, key)
            if missing:
                cause = "config-missing" if kind == "ConfigMap" else "secret-missing"
                evidence = [f"{pod.short} needs it for {where}"]
                yield Cause(cause, Layer.BLOCKED, missing, evidence, pod.name, at=pod.created)
                return


def _missing(snapshot: Snapshot, kind: str, name: str, key: str | None) -> str | None:
    if not snapshot.saw(kind):
        return None
    found = snapshot.find(kind, name)
    label = "secret" if kind == "Secret" else kind
    if found is None:
        return f"the {label} {name} does not exist in namespace {snapshot.namespace}"
    keys = found.get("keys")
    if keys is None or key is None or key in keys:
        return None
    return f"the {label} {name} has no key {key}, it has {', '.join(sorted(keys)) or 'none'}"


CONFIG_ERRORS = (
    (
        "config-missing",
        r"(?i)configmaps? \"([^\"]+)\" not found|couldn't find key .* in ConfigMap|non-existent config key",
    ),
    (
        "secret-missing",
        r"(?i)secrets? \"([^\"]+)\" not found|couldn't find key .* in Secret|non-existent secret key",
    ),
    ("run-as-root", r"(?i)runAsNonRoot|run as root|cannot verify user is non-root"),
    ("volume", r"(?i)subPath"),
)
RUN_ERRORS = (
    ("image-architecture", r"(?i)exec format error"),
    ("image-accelerator", r"unsatisfied condition: (?:cuda|driver|brand|arch)"),
    ("device", r"(?i)nvidia-container-cli|CDI devices|nvml error"),
    ("storage-full", r"(?i)no space left on device"),
    ("volume", r"(?i)error mounting|subPath"),
    (
        "command",
        r"(?i)executable file not found|no such file or directory|permission denied|not found in \$PATH"
        r"|no command specified",
    ),
    ("oom-host", r"(?i)cannot allocate memory|memory limit"),
    ("run-as-root", r"(?i)unable to find user|runAsNonRoot"),
    ("volume", r"(?i)mount"),
)


def start_error(message: str) -> str:
    """Return the cause of a container that the runtime could not start, from what the runtime says."""
    return next((kind for kind, pattern in RUN_ERRORS if re.search(pattern, message)), "command")


def container_errors(snapshot: Snapshot) -> Iterator[Cause]:
    """The kubelet or the container runtime cannot make or start the container."""
    for pod in blocked(snapshot):
        reason, message = pod.waiting
        if reason not in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            continue
        table = CONFIG_ERRORS if reason == "CreateContainerConfigError" else RUN_ERRORS
        kind = next((kind for kind, pattern in table if re.search(pattern, message)), "refused")
        evidence = [short(f"{pod.short} on {pod.node}: {reason}: {message}")]
        summary = "the container cannot be made from what its pod says"
        yield Cause(kind, Layer.BLOCKED, summary, evidence, pod.name, at=pod.created)
        return


def mounts(snapshot: Snapshot) -> Iterator[Cause]:
    """A volume is not mounted, or the pod gets no network: only the kubelet's events say so."""
    for pod in blocked(snapshot):
        if pod.waiting[0] not in ("", "ContainerCreating"):
            continue
        for event in reversed(snapshot.events("Pod", pod.name)):
            reason, message = event.get("reason"), str(event.get("message", ""))
            if event.get("type") != "Warning":
                break  # something went on since
            at = event_time(event)
            evidence = [short(f"{pod.short} on {pod.node}: {reason}: {message}")]
            if _passes(snapshot, pod, event):
                break
            if reason in ("FailedMount", "FailedAttachVolume", "FailedMapVolume"):
                kind = next(
                    (kind for kind, pattern in CONFIG_ERRORS if re.search(pattern, message)), "volume"
                )
                yield Cause(kind, Layer.BLOCKED, "a volume cannot be mounted", evidence, pod.name, at=at)
                return
            if reason in ("FailedCreatePodSandBox", "NetworkNotReady"):
                summary = "the node's network plugin gives the pod no network"
                yield Cause("pod-network", Layer.BLOCKED, summary, evidence, pod.name, at=at)
                return


def _passes(snapshot: Snapshot, pod: JobPod, event: Object) -> bool:
    """Say whether what a kubelet has complained of may pass by itself: the pod is new, and it asks again."""
    age = snapshot.age(pod.placed)
    if age is None or age >= PASSES:
        return False
    alike = (one for one in snapshot.events("Pod", pod.name) if one.get("reason") == event.get("reason"))
    tries = sum(int(one.get("count") or 1) for one in alike)
    return tries < TRIES or PASSING.search(str(event.get("message"))) is not None
