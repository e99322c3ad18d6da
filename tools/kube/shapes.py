"""The types of the fields that the rules read.

The rule `types` reports a value of another type, and no other rule but `schema` checks its object. Whole
schemas are checked by the rule `schema`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.output import short

VALUE = 60  # characters of a value in a message


@dataclass(frozen=True)
class Misshape:
    """A value of a type that Kubernetes refuses."""

    path: str
    value: Any
    wanted: str

    @property
    def shown(self) -> str:
        """The fault in one line, such as `spec.replicas: must be an integer, not 'two'`."""
        given = "" if self.value is None else f", not {short(repr(self.value), VALUE)}"
        return f"{self.path}: must be {self.wanted}{given}"


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
AMOUNTS = {"*": SCALAR}
RESOURCES = {"requests": AMOUNTS, "limits": AMOUNTS}
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
    "resources": RESOURCES,
    "volumeMounts": [{"name!": str, "mountPath!": str, "subPath": str}],
    "restartPolicy": str,
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
    "secret": {"secretName": str, "optional": bool, "items": [{"key!": str, "path!": str}]},
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
    "resources": RESOURCES,
    "overhead": AMOUNTS,
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
SELECTOR = {"matchLabels": TEXTS, "matchExpressions": [EXPRESSION]}
POLICY_PORT = {"port": (str, int), "endPort": int, "protocol": str}
POLICIES = {"runPolicy": {}, "elasticPolicy": {"minReplicas": int, "maxReplicas": int}}
REPLICA = {"replicas": int, "restartPolicy": str}
# The fields of other objects that the rules read.
OBJECTS: dict[str, Any] = {
    "ConfigMap": {"data": TEXTS, "binaryData": TEXTS},
    "Secret": {"data": TEXTS, "stringData": TEXTS},
    "NetworkPolicy": {
        "spec": {
            "podSelector": SELECTOR,
            "policyTypes": [str],
            "ingress": [{"from": [{"podSelector": SELECTOR}], "ports": [POLICY_PORT]}],
            "egress": [{}],
        }
    },
    "Service": {"spec": {"type": str, "ports": [{"port": int, "targetPort": (str, int)}]}},
    "PersistentVolumeClaim": {"spec": {"accessModes": [str]}},
}

_NAMES = {str: "a string in quotes", int: "an integer", bool: "true or false"}


def misshapes(value: Any, shape: Any, path: str) -> Iterator[Misshape]:
    """Yield the values that are not of the type in `shape`. Null counts as missing."""
    if isinstance(shape, dict):
        yield from _mapping(value, shape, path)
    elif isinstance(shape, list):
        yield from _list(value, shape[0], path)
    elif not _is(value, shape):
        yield Misshape(path.lstrip("."), value, _NAMES.get(shape, "a number or a string"))


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
            yield Misshape(f"{path}.{name}".lstrip("."), None, "set")


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
