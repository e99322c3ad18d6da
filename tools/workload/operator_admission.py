"""What the API server and the training operator refuse in a PyTorchJob, before any pod exists.

A job that is admitted and then fails is found by `tools.simulator.wiring`. Sources: the types of
manifests/base/crds/kubeflow.org_pytorchjobs.yaml for the shape;
pkg/apis/kubeflow.org/v1/pytorch_validation.go (1.7.0) and pkg/webhooks/pytorch/pytorchjob_webhook.go (from
1.8.0) of github.com/kubeflow/training-operator for `rejections`.
"""

import re
from collections.abc import Iterator

from tools.kube.manifests import Object
from tools.kube.shapes import JOBS, misshapes

MASTER = "Master"
WORKER = "Worker"
REPLICA_TYPES = (MASTER, WORKER)
DEFAULT_CONTAINER = "pytorch"
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# Lists of a pod that may hold two entries of the same key, and that the CRD gives a key from 1.9.0 on.
KEYED = re.compile(r"\.(?:env|hostAliases|imagePullSecrets)\[\d+\]")
MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")


def parsed(version: str) -> tuple[int, ...]:
    """Return `1.9.4` as (1, 9, 4)."""
    return tuple(int(part) for part in version.split("."))


def admits_twice(version: str) -> bool:
    """Return whether release `version` admits a job with two equal keys in a KEYED list; empty: unknown."""
    return bool(version) and parsed(version) < (1, 9)


def rejections(job: Object, version: str) -> list[str]:
    """Return why operator `version`, or the API server, refuses `job`. The list is empty for an admitted job."""
    errors = [one.shown for one in misshapes(job, JOBS["PyTorchJob"], "")]
    if errors:
        return errors
    spec = job["spec"]
    if not spec["pytorchReplicaSpecs"]:
        return ["spec.pytorchReplicaSpecs: must be a mapping with Worker, Master or both"]
    release = parsed(version)
    errors = list(_job_errors(job, release))
    for name, replica in spec["pytorchReplicaSpecs"].items():
        errors += _replica_errors(name, replica, release)
    return errors


def _job_errors(job: Object, release: tuple[int, ...]) -> Iterator[str]:
    name, spec = (job.get("metadata") or {}).get("name"), job["spec"]
    elastic, manager = spec.get("elasticPolicy"), (spec.get("runPolicy") or {}).get("managedBy")
    if not (isinstance(name, str) and len(name) <= 63 and DNS_1035.fullmatch(name)):
        rule = "must be lower-case letters, digits and -, start with a letter, at most 63"
        yield f"metadata.name: {name!r} {rule}"
    if spec.get("nprocPerNode") is not None and (elastic or {}).get("nProcPerNode") is not None:
        yield "spec.elasticPolicy.nProcPerNode: must not be used with spec.nprocPerNode"
    if release >= (1, 9) and elastic is not None and WORKER not in spec["pytorchReplicaSpecs"]:
        yield "spec.pytorchReplicaSpecs[Worker]: must be configured if elastic policy is used"
    if release >= (1, 9) and manager not in (None, *MANAGERS):
        yield f"spec.runPolicy.managedBy: {manager!r} must be one of {', '.join(MANAGERS)}"


def _replica_errors(name: str, replica: Object, release: tuple[int, ...]) -> list[str]:
    path = f"spec.pytorchReplicaSpecs[{name}]"
    containers = replica["template"]["spec"]["containers"]
    errors = []
    if (name.capitalize() if release < (1, 8) else name) not in REPLICA_TYPES:
        errors.append(f"{path}: must be Master or Worker")
    if not containers:
        errors.append(f"{path}.template.spec.containers: must be specified")
    for index, container in enumerate(containers):
        if not container.get("image"):
            errors.append(f"{path}.template.spec.containers[{index}].image: must be specified")
    if all(container.get("name") != DEFAULT_CONTAINER for container in containers):
        errors.append(f"{path}.template.spec.containers: one must have the name {DEFAULT_CONTAINER}")
    return errors + _count_errors(name, path, replica.get("replicas"), release)


def _count_errors(name: str, path: str, replicas: int | None, release: tuple[int, ...]) -> list[str]:
    if name.capitalize() == MASTER:
        written = replicas if release >= (1, 8) or replicas is not None else 1
        return [] if written == 1 else [f"{path}.replicas: must be 1"]
    if release >= (1, 9) and replicas is not None and replicas < 1:
        return [f"{path}.replicas: must be at least 1"]
    return []
