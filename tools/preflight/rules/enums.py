"""The rule on words out of a fixed set, which the operator's CRD does not check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tools.core.verdict import Verdict, bad, good
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("enums", "the CRD has no enums: a misspelt word is admitted and the job stands still")
def enums(subject: Subject) -> Iterator[Verdict]:
    """Words out of a fixed set are spelt right: restartPolicy, cleanPodPolicy, rdzvBackend, imagePullPolicy
    and others.

    The operator's CRD takes any text. `restartPolicy: OnFailur` is admitted; every pod is then refused on
    each reconcile, and the job says Created for ever.
    """
    for item in subject.objects:
        for path, value, allowed in _words_of(item, subject):
            place = Place(title(item), path, value)
            if value in allowed or (path.endswith("nprocPerNode") and value.isdigit()):
                yield good(place, "a word that is known there")
            else:
                yield bad(
                    place, f"{value!r} is none of {', '.join(filter(None, allowed))}", "correct the word"
                )


RESTART = ("Always", "OnFailure", "Never")
_CONTAINER_WORDS = {"imagePullPolicy": ("Always", "IfNotPresent", "Never")}
_POD_WORDS = {
    "restartPolicy": RESTART,
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
}
_TOLERATION_WORDS = {
    "operator": ("Exists", "Equal", "Lt", "Gt"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
}
_HOST_PATHS = (
    *("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File"),
    *("Socket", "CharDevice", "BlockDevice"),
)
_MEDIA = ("", "Memory", "HugePages", "HugePages-2Mi", "HugePages-1Gi")
_CLEAN = {"PyTorchJob": ("None", "Running", "All"), "HyperPodPyTorchJob": ("None", "OnlyComplete", "All")}

Word = tuple[str, str, tuple[str, ...]]


def _words_of(item: dict[str, Any], subject: Subject) -> Iterator[Word]:
    templates = [template for template in subject.templates if template.item is item]
    kind, spec = str(item.get("kind")), item.get("spec")
    if kind in _CLEAN and templates and isinstance(spec, dict):
        yield from _chosen(spec.get("runPolicy"), "spec.runPolicy", {"cleanPodPolicy": _CLEAN[kind]})
        backends = {"rdzvBackend": ("c10d", "etcd", "etcd-v2", "static")}
        yield from _chosen(spec.get("elasticPolicy"), "spec.elasticPolicy", backends)
        yield from _chosen(spec, "spec", {"nprocPerNode": ("auto", "cpu", "gpu", "xpu")})
    if kind == "PyTorchJob" and templates and isinstance(spec, dict):
        for role, replica in spec["pytorchReplicaSpecs"].items():
            words = {"restartPolicy": (*RESTART, "ExitCode")}
            yield from _chosen(replica, f"spec.pytorchReplicaSpecs.{role}", words)
    for template in templates:
        at = template.spec_path
        yield from _chosen(template.spec, at, _POD_WORDS)
        for index, toleration in enumerate(template.spec.get("tolerations") or []):
            yield from _chosen(toleration, f"{at}.tolerations[{index}]", _TOLERATION_WORDS)
        for name, volume in template.volumes().items():
            yield from _chosen(volume.get("emptyDir"), f"{at}.volumes[{name}].emptyDir", {"medium": _MEDIA})
            yield from _chosen(
                volume.get("hostPath"), f"{at}.volumes[{name}].hostPath", {"type": _HOST_PATHS}
            )
        for path, container in template.containers():
            yield from _chosen(container, path, _CONTAINER_WORDS)
            for index, port in enumerate(container.get("ports") or []):
                yield from _chosen(port, f"{path}.ports[{index}]", {"protocol": ("TCP", "UDP", "SCTP")})


def _chosen(value: Any, path: str, words: Mapping[str, tuple[str, ...]]) -> Iterator[Word]:
    if isinstance(value, dict):
        for key, allowed in words.items():
            if isinstance(value.get(key), str):
                yield f"{path}.{key}", value[key], allowed
