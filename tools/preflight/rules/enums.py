"""The rule on fields with a fixed set of values, which the operator's CRD does not check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tools.core.verdict import Verdict, bad, doubtful, good
from tools.kube.manifests import Object
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("enums", "the CRD has no enums: a misspelt value is admitted, and the job never starts")
def enums(subject: Subject) -> Iterator[Verdict]:
    """Fields with a fixed set of values have one of them: restartPolicy, cleanPodPolicy, rdzvBackend,
    imagePullPolicy and others.

    The operator's CRD admits any string. With `restartPolicy: OnFailur` the API server refuses every pod on
    each reconcile, and the job stays in Created. A misspelt cleanPodPolicy is a warning: the operator treats
    it as All.
    """
    for item in subject.objects:
        for path, value, allowed in _values(item, subject):
            place = Place(title(item), path, value)
            if value in allowed or (path.endswith("nprocPerNode") and value.isdigit()):
                yield good(place, "an allowed value")
                continue
            summary = f"{value!r} is not one of {', '.join(filter(None, allowed))}"
            verdict = doubtful if path.endswith("cleanPodPolicy") else bad
            yield verdict(place, summary, "correct the value")


RESTART = ("Always", "OnFailure", "Never")
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
    for template in templates:
        at = template.spec_path
        yield from _set(template.spec, at, _POD)
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


def _set(holder: Any, path: str, fields: Mapping[str, tuple[str, ...]]) -> Iterator[Value]:
    if isinstance(holder, dict):
        for key, allowed in fields.items():
            if isinstance(holder.get(key), str):
                yield f"{path}.{key}", holder[key], allowed
