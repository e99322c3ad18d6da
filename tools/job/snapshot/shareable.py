"""What of a snapshot may be shared: no secrets, and of others' pods what the scheduler counts."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tools.core.secret_patterns import masked
from tools.kube import Object
from tools.workload.operator_pods import IMAGE

LEFT_OUT = "left out"
# The variables whose values the diagnosis and a reader need. Any other variable may hold a secret.
KEPT = re.compile(
    r"(?:TRAINYARD|PET|MASTER|NCCL|FI|GLOO|TORCH|CUDA|NVIDIA|NEURON|XLA|OMP|MKL|PYTORCH|HF_HUB)_\w+"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|JOB_NAME|HF_HOME|PYTHON\w+"
)
DROPPED = ("managedFields", "kubectl.kubernetes.io/last-applied-configuration", "images")


def clean(value: Any) -> Any:
    """Return plain data with masked texts, without variables' values, and without copies of it."""
    return masked(_without_values(value))


def _without_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {
        key: _without_values(item) if isinstance(item, (dict, list)) else item
        for key, item in value.items()
        if key not in DROPPED
    }
    if isinstance(found.get("env"), list):
        found["env"] = [_variable(entry) for entry in found["env"]]
    return found


def _variable(entry: Any) -> Any:
    if not isinstance(entry, dict) or "value" not in entry or KEPT.fullmatch(str(entry.get("name"))):
        return entry
    return entry | {"value": LEFT_OUT}


def affinity_labels(specs: Iterable[Object]) -> Iterator[str]:
    """Yield the labels by which pods of these specs want to be close to others."""
    for spec in specs:
        terms = ((spec.get("affinity") or {}).get("podAffinity") or {}).values()
        for term in (one for group in terms for one in group or []):
            selector = (term.get("podAffinityTerm") or term).get("labelSelector") or {}
            yield from selector.get("matchLabels") or {}
            yield from (one.get("key", "") for one in selector.get("matchExpressions") or [])


def counted(pod: Object, labels: set[str]) -> Object:
    """Return a pod's name, place, requests and priority; its image only if it is the operator's."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
    own = {key: value for key, value in (metadata.get("labels") or {}).items() if key in labels}
    own_spec = {key: spec[key] for key in ("nodeName", "overhead", "resources", "priority") if key in spec}
    for group in ("containers", "initContainers"):
        own_spec[group] = [_requests(container) for container in spec.get(group) or []]
    ready = [{"ready": bool(one.get("ready"))} for one in status.get("containerStatuses") or []]
    found = {"phase": status.get("phase", "Unknown"), "containerStatuses": ready}
    return {"metadata": kept | {"labels": own}, "spec": own_spec, "status": found}


def _requests(container: Object) -> Object:
    found = {key: container[key] for key in ("resources", "restartPolicy") if key in container}
    operator = IMAGE in str(container.get("image"))
    return found | ({"image": IMAGE} if operator else {})
