"""The shape that the rules rely on: which fields of a pod are texts, lists or mappings.

It holds only what the rules read; whole schemas are the rule `schema`'s. A pod of another shape is reported
by the rule `types` and looked at by no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Misshape:
    """A value of a type that Kubernetes refuses at this place."""

    path: str
    value: Any
    wanted: str


SCALAR = (str, int, float)
TEXTS = {"*": str}
REFERENCE = {"name": str}
KEY_REFERENCE = {"name": str, "key!": str, "optional": bool}
SECURITY = {
    "privileged": bool,
    "allowPrivilegeEscalation": bool,
    "runAsNonRoot": bool,
    "runAsUser": int,
    "capabilities": {"add": [str], "drop": [str]},
    "seccompProfile": {"type": str},
}
ENV = {
    "name!": str,
    "value": str,
    "valueFrom": {
        "fieldRef": {"fieldPath!": str},
        "resourceFieldRef": {"resource!": str, "containerName": str, "divisor": SCALAR},
        "configMapKeyRef": KEY_REFERENCE,
        "secretKeyRef": KEY_REFERENCE,
    },
}
CONTAINER = {
    "name!": str,
    "image": str,
    "imagePullPolicy": str,
    "command": [str],
    "args": [str],
    "workingDir": str,
    "env": [ENV],
    "envFrom": [{"prefix": str, "configMapRef": REFERENCE, "secretRef": REFERENCE}],
    "ports": [{"name": str, "containerPort!": int, "hostPort": int, "protocol": str}],
    "resources": {"requests": {"*": SCALAR}, "limits": {"*": SCALAR}},
    "volumeMounts": [{"name!": str, "mountPath!": str, "subPath": str}],
    "securityContext": SECURITY,
    "readinessProbe": {},
    "lifecycle": {"preStop": {"exec": {"command": [str]}, "sleep": {"seconds": int}}},
}
SOURCE = {"name": str, "optional": bool, "items": [{"key!": str, "path!": str}]}
VOLUME = {
    "name!": str,
    "hostPath": {"path!": str, "type": str},
    "emptyDir": {"medium": str, "sizeLimit": SCALAR},
    "persistentVolumeClaim": {"claimName!": str},
    "configMap": SOURCE,
    "secret": {"secretName": str, "optional": bool},
    "projected": {"sources": [{"configMap": SOURCE, "secret": SOURCE}]},
}
EXPRESSION = {"key!": str, "operator!": str, "values": [str]}
NODE_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}],
    }
}
POD = {
    "containers!": [CONTAINER],
    "initContainers": [CONTAINER],
    "volumes": [VOLUME],
    "nodeSelector": TEXTS,
    "affinity": {"nodeAffinity": NODE_AFFINITY},
    "tolerations": [{"key": str, "operator": str, "effect": str}],
    "serviceAccountName": str,
    "restartPolicy": str,
    "dnsPolicy": str,
    "terminationGracePeriodSeconds": int,
    "hostNetwork": bool,
    "hostPID": bool,
    "hostIPC": bool,
    "securityContext": SECURITY,
    "imagePullSecrets": [REFERENCE],
}
META = {"name": str, "namespace": str, "labels": TEXTS, "annotations": TEXTS}
TEMPLATE = {"metadata": META, "spec!": POD}
# What other objects have that rules read.
OBJECTS: dict[str, Any] = {
    "ConfigMap": {"data": TEXTS, "binaryData": TEXTS},
    "Secret": {"data": TEXTS, "stringData": TEXTS},
    "NetworkPolicy": {
        "spec": {
            "podSelector": {"matchLabels": TEXTS, "matchExpressions": [{}]},
            "policyTypes": [str],
            "ingress": [{"from": [{"podSelector": {"matchLabels": TEXTS}}], "ports": [{}]}],
        }
    },
    "Service": {"spec": {"type": str, "ports": [{"port": int, "targetPort": (str, int)}]}},
    "PersistentVolumeClaim": {"spec": {"accessModes": [str]}},
    "PyTorchJob": {"spec": {"elasticPolicy": {"minReplicas": int, "maxReplicas": int}}},
}

_NAMES = {str: "a text in quotes", int: "a whole number", bool: "true or false", dict: "a mapping"}


def misshapes(value: Any, shape: Any, path: str) -> Iterator[Misshape]:
    """Yield where `value` is of another type than `shape` says. A value that is null counts as absent."""
    if isinstance(shape, dict):
        yield from _mapping(value, shape, path)
    elif isinstance(shape, list):
        yield from _list(value, shape[0], path)
    elif not _is(value, shape):
        yield Misshape(path.lstrip("."), value, _NAMES.get(shape, "a number or a text"))


def _mapping(value: Any, shape: dict[str, Any], path: str) -> Iterator[Misshape]:
    if not isinstance(value, dict):
        yield Misshape(path.lstrip("."), value, "a mapping")
        return
    for key, inner in shape.items():
        if key == "*":
            for name, item in value.items():
                if item is not None:
                    yield from misshapes(item, inner, f"{path}.{name}")
            continue
        name = key.removesuffix("!")
        if value.get(name) is not None:
            yield from misshapes(value[name], inner, f"{path}.{name}")
        elif name != key:
            yield Misshape(f"{path}.{name}".lstrip("."), None, "something: it is missing")


def _list(value: Any, inner: Any, path: str) -> Iterator[Misshape]:
    if not isinstance(value, list):
        yield Misshape(path.lstrip("."), value, "a list")
        return
    for index, item in enumerate(value):
        yield from misshapes(item, inner, f"{path}[{index}]")


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind)
