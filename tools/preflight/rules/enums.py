"""The rule on fields with a fixed set of values, which the operator's CRD does not check."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.core.verdict import Verdict, bad, doubtful, good
from tools.kube.manifests import Object
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title
from tools.workload.volcano import VolcanoJob


@rule("enums")
def enums(subject: Subject) -> Iterator[Verdict]:
    for item in subject.objects:
        for path, value, allowed in _values(item, subject):
            place = Place(title(item), path, value)
            if value in allowed or (path.endswith("nprocPerNode") and value.isdigit()):
                yield good(place, "an allowed value")
                continue
            given = "not set, so Always," if value == UNSET else repr(value)
            summary = f"{given} is not one of {', '.join(filter(None, allowed))}"
            verdict = doubtful if path.endswith("cleanPodPolicy") else bad
            yield verdict(place, summary, "correct the value")
    for template in subject.templates:
        for index, one in enumerate(template.spec.get("tolerations") or []):
            if one.get("operator") == "Exists" and one.get("value"):
                place = Place(template.object, f"{template.spec_path}.tolerations[{index}].value", one["value"])
                yield bad(place, "a toleration with operator Exists has no value", "remove the value, or use Equal")


RESTART = ("Always", "OnFailure", "Never")
UNSET = ""
# pkg/webhooks/admission/jobs/validate/util.go of volcano-sh/volcano v1.15.1
_EVENTS = (
    *("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed"),
    "JobUpdated",
)
_ACTIONS = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob"),
    *("CompleteJob", "ResumeJob"),
)
_CONTAINER = {"imagePullPolicy": ("Always", "IfNotPresent", "Never")}
_POD = {
    "restartPolicy": RESTART,
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
}
_TOLERATION = {
    "operator": ("Exists", "Equal", "Lt", "Gt"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
}
_HOST_PATHS = (
    *("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File"),
    *("Socket", "CharDevice", "BlockDevice"),
)
_MEDIA = ("", "Memory", "HugePages", "HugePages-2Mi", "HugePages-1Gi")
_CLEAN = {"PyTorchJob": ("None", "Running", "All"), "HyperPodPyTorchJob": ("None", "OnlyComplete", "All")}

Value = tuple[str, str, tuple[str, ...]]  # path, value, allowed values


def _values(item: Object, subject: Subject) -> Iterator[Value]:
    templates = subject.templates_of(item)
    kind, spec = str(item.get("kind")), item.get("spec")
    if kind in _CLEAN and templates and isinstance(spec, dict):
        yield from _set(spec.get("runPolicy"), "spec.runPolicy", {"cleanPodPolicy": _CLEAN[kind]})
        backends = {"rdzvBackend": ("c10d", "etcd", "etcd-v2", "static")}
        yield from _set(spec.get("elasticPolicy"), "spec.elasticPolicy", backends)
        yield from _set(spec, "spec", {"nprocPerNode": ("auto", "cpu", "gpu", "xpu")})
    if kind == "PyTorchJob" and templates and isinstance(spec, dict):
        for role, replica in spec["pytorchReplicaSpecs"].items():
            policies = {"restartPolicy": (*RESTART, "ExitCode")}
            yield from _set(replica, f"spec.pytorchReplicaSpecs.{role}", policies)
    for holder, path in _policies(item, subject):
        yield from _set(holder, path, {"event": _EVENTS, "action": _ACTIONS})
    for template in templates:
        at = template.spec_path
        batch = template.workload is not None and template.workload.of_batch
        if batch and kind == "Job" and "restartPolicy" not in template.spec:
            yield f"{at}.restartPolicy", UNSET, RESTART[1:]
        yield from _set(template.spec, at, {**_POD, "restartPolicy": RESTART[1:]} if batch else _POD)
        for index, toleration in enumerate(template.spec.get("tolerations") or []):
            yield from _set(toleration, f"{at}.tolerations[{index}]", _TOLERATION)
        for name, volume in template.volumes().items():
            path = f"{at}.volumes[{name}]"
            yield from _set(volume.get("emptyDir"), f"{path}.emptyDir", {"medium": _MEDIA})
            yield from _set(volume.get("hostPath"), f"{path}.hostPath", {"type": _HOST_PATHS})
        for path, container in template.containers():
            yield from _set(container, path, _CONTAINER)
            for index, port in enumerate(container.get("ports") or []):
                yield from _set(port, f"{path}.ports[{index}]", {"protocol": ("TCP", "UDP", "SCTP")})


def _policies(item: Object, subject: Subject) -> Iterator[tuple[Object, str]]:
    """Yield the policies of a Volcano Job and of its tasks, with their paths."""
    if not VolcanoJob.matches(item) or not subject.templates_of(item):
        return
    spec = item["spec"]
    for holder, path in [
        (spec, "spec"),
        *((one, f"spec.tasks[{at}]") for at, one in enumerate(spec["tasks"])),
    ]:
        for at, one in enumerate(holder.get("policies") or []):
            yield one, f"{path}.policies[{at}]"


def _set(holder: Any, path: str, fields: Mapping[str, tuple[str, ...]]) -> Iterator[Value]:
    if isinstance(holder, dict):
        for key, allowed in fields.items():
            if isinstance(holder.get(key), str):
                yield f"{path}.{key}", holder[key], allowed
