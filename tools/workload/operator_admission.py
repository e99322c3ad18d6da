"""What the API server and the training operator refuse in a PyTorchJob, before any pod exists.

A job that is admitted and then fails is found by `tools.simulator.wiring`. Sources: the types of
manifests/base/crds/kubeflow.org_pytorchjobs.yaml for `schema_errors`;
pkg/apis/kubeflow.org/v1/pytorch_validation.go (1.7.0) and pkg/webhooks/pytorch/pytorchjob_webhook.go (from
1.8.0) of github.com/kubeflow/training-operator for `rejections`.
"""

from __future__ import annotations

import re
from typing import Any

from tools.kube.manifests import Object

MASTER = "Master"
WORKER = "Worker"
REPLICA_TYPES = (MASTER, WORKER)
DEFAULT_CONTAINER = "pytorch"
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")


_ELASTIC_TYPES: dict[str, type] = {
    "minReplicas": int,
    "maxReplicas": int,
    "rdzvPort": int,
    "nProcPerNode": int,
    "maxRestarts": int,
    "rdzvBackend": str,
    "rdzvHost": str,
    "rdzvId": str,
    "standalone": bool,
    "rdzvConf": list,
}
_CONTAINER_TYPES: dict[str, type] = {
    "name": str,
    "image": str,
    "command": list,
    "args": list,
    "env": list,
    "ports": list,
}
_JSON_NAMES = {int: "an integer", str: "a string", bool: "true or false", list: "a list", dict: "a mapping"}


def parsed(version: str) -> tuple[int, ...]:
    """Return `1.9.4` as (1, 9, 4)."""
    return tuple(int(part) for part in version.split("."))


def rejections(job: Object, version: str) -> list[str]:
    """Return why operator `version`, or the API server, refuses `job`. The list is empty for an admitted
    job.
    """
    errors = schema_errors(job)
    if errors:
        return errors
    spec = job["spec"]
    release = parsed(version)
    errors = _name_errors(job) + _nproc_errors(spec)
    if release >= (1, 9):
        errors += _elastic_errors(spec) + _manager_errors(spec)
    for name, replica in spec["pytorchReplicaSpecs"].items():
        errors += _replica_errors(name, replica, release)
    return errors


def schema_errors(job: Object) -> list[str]:
    """Return the fields that the operator reads and whose type the CRD's schema refuses."""
    spec = job.get("spec")
    if not isinstance(spec, dict):
        return ["spec: must be a mapping"]
    errors = _typed(spec, "spec", {"nprocPerNode": str, "runPolicy": dict, "elasticPolicy": dict})
    replicas = spec.get("pytorchReplicaSpecs")
    if not isinstance(replicas, dict) or not replicas:
        return [*errors, "spec.pytorchReplicaSpecs: must be a mapping with Worker, Master or both"]
    if isinstance(spec.get("elasticPolicy"), dict):
        errors += _typed(spec["elasticPolicy"], "spec.elasticPolicy", _ELASTIC_TYPES)
        errors += _rdzv_conf_errors(spec["elasticPolicy"].get("rdzvConf"))
    for name, replica in replicas.items():
        errors += _replica_schema_errors(f"spec.pytorchReplicaSpecs.{name}", replica)
    return errors


def _typed(value: Object, path: str, types: dict[str, type]) -> list[str]:
    return [
        f"{path}.{key}: must be {_JSON_NAMES[kind]}, not {value[key]!r}"
        for key, kind in types.items()
        if value.get(key) is not None and not _is(value[key], kind)
    ]


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _rdzv_conf_errors(entries: Any) -> list[str]:
    if not isinstance(entries, list):
        return []
    path = "spec.elasticPolicy.rdzvConf"
    errors = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            errors.append(f"{path}[{index}]: must be a mapping with key and value")
            continue
        errors += _typed(entry, f"{path}[{index}]", {"key": str, "value": str})
    return errors


def _replica_schema_errors(path: str, replica: Any) -> list[str]:
    if not isinstance(replica, dict):
        return [f"{path}: must be a mapping"]
    errors = _typed(replica, path, {"replicas": int, "restartPolicy": str, "template": dict})
    pod_spec = ((replica.get("template") or {}).get("spec") or {}) if not errors else {}
    containers = pod_spec.get("containers")
    if not isinstance(containers, list) or not all(isinstance(item, dict) for item in containers):
        return errors or [f"{path}.template.spec.containers: must be a list of containers"]
    for index, container in enumerate(containers):
        errors += _container_errors(f"{path}.template.spec.containers[{index}]", container)
    return errors


def _container_errors(path: str, container: Object) -> list[str]:
    kinds: dict[str, type] = {
        "name": str,
        "image": str,
        "command": list,
        "args": list,
        "env": list,
        "ports": list,
    }
    errors = _typed(container, path, kinds)
    if errors:
        return errors
    for key in ("command", "args"):
        for index, word in enumerate(container.get(key) or []):
            if not isinstance(word, str):
                errors.append(f"{path}.{key}[{index}]: must be a string, not {word!r}")
    for index, entry in enumerate(container.get("env") or []):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            errors.append(f"{path}.env[{index}]: must be a mapping with a name")
            continue
        errors += _typed(entry, f"{path}.env[{entry['name']}]", {"value": str, "valueFrom": dict})
    for index, port in enumerate(container.get("ports") or []):
        if not isinstance(port, dict) or not _is(port.get("containerPort"), int):
            errors.append(f"{path}.ports[{index}].containerPort: must be an integer")
    return errors


def _name_errors(job: Object) -> list[str]:
    name = (job.get("metadata") or {}).get("name")
    if isinstance(name, str) and len(name) <= 63 and DNS_1035.fullmatch(name):
        return []
    return [
        f"metadata.name: {name!r} must be lower-case letters, digits and -, start with a letter, at most 63"
    ]


def _nproc_errors(spec: Object) -> list[str]:
    if spec.get("nprocPerNode") is None or (spec.get("elasticPolicy") or {}).get("nProcPerNode") is None:
        return []
    return ["spec.elasticPolicy.nProcPerNode: must not be used with spec.nprocPerNode"]


def _elastic_errors(spec: Object) -> list[str]:
    if spec.get("elasticPolicy") is None or WORKER in spec["pytorchReplicaSpecs"]:
        return []
    return ["spec.pytorchReplicaSpecs[Worker]: must be configured if elastic policy is used"]


def _manager_errors(spec: Object) -> list[str]:
    manager = (spec.get("runPolicy") or {}).get("managedBy")
    if manager is None or manager in MANAGERS:
        return []
    return [f"spec.runPolicy.managedBy: {manager!r} must be one of {', '.join(MANAGERS)}"]


def _replica_errors(name: str, replica: Object, release: tuple[int, ...]) -> list[str]:
    path = f"spec.pytorchReplicaSpecs[{name}]"
    containers = replica["template"]["spec"]["containers"]
    errors = []
    if not _is_replica_type(name, release):
        errors.append(f"{path}: must be Master or Worker")
    if not containers:
        errors.append(f"{path}.template.spec.containers: must be specified")
    for index, container in enumerate(containers):
        if not container.get("image"):
            errors.append(f"{path}.template.spec.containers[{index}].image: must be specified")
    if all(container.get("name") != DEFAULT_CONTAINER for container in containers):
        errors.append(f"{path}.template.spec.containers: one must have the name {DEFAULT_CONTAINER}")
    return errors + _count_errors(name, path, replica.get("replicas"), release)


def _is_replica_type(name: str, release: tuple[int, ...]) -> bool:
    if release < (1, 8):
        return name.capitalize() in REPLICA_TYPES
    return name in REPLICA_TYPES


def _count_errors(name: str, path: str, replicas: int | None, release: tuple[int, ...]) -> list[str]:
    if name.capitalize() == MASTER:
        written = replicas if release >= (1, 8) or replicas is not None else 1
        return [] if written == 1 else [f"{path}.replicas: must be 1"]
    if release >= (1, 9) and replicas is not None and replicas < 1:
        return [f"{path}.replicas: must be at least 1"]
    return []
