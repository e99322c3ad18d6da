"""Kubernetes quantities (`500m`, `3Gi`, `2`), and the requests of containers and pods.

Source: k8s.io/apimachinery/pkg/api/resource (quantity.go).
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from tools.core import UserError
from tools.kube.manifests import Object

UNITS = {
    "": Decimal(1),
    **{name: Decimal(1000) ** -power for power, name in enumerate("mun", 1)},
    **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", 1)},
}


def quantity(text: str) -> Decimal:
    """Return a Kubernetes quantity as a number. Raises UserError if it is not valid."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]{1,2})?)([a-zA-Z]{0,2})", str(text).strip())
    try:
        if match and match[2] in UNITS:
            return Decimal(match[1]) * UNITS[match[2]]
    except InvalidOperation:
        pass
    raise UserError(f"{text!r} is not a Kubernetes quantity such as 500m, 2 or 3Gi")


def amount(value: Any) -> Decimal | None:
    """Return a quantity as a number, or None if it is not valid."""
    try:
        return quantity(str(value))
    except UserError:
        return None


def amounts(quantities: Object) -> dict[str, Decimal]:
    """Return quantities by name as numbers. Those that are not valid count as 0."""
    return {name: amount(value) or Decimal(0) for name, value in quantities.items()}


def requests(holder: Object) -> Object:
    """Return what a container, or a pod as a whole, requests. A limit without a request is also a request."""
    resources = holder.get("resources") or {}
    return (resources.get("limits") or {}) | (resources.get("requests") or {})


def pod_requests(spec: Object) -> dict[str, Decimal]:
    """Return what a pod requests, by resource: the sum of its containers, or its largest init container.

    Sidecars (init containers with restartPolicy Always) count with the containers. The pod's own resources
    replace the sum, and its overhead is added.
    Source: kubernetes.io/docs/concepts/workloads/pods/sidecar-containers, "Resource sharing".
    """
    init = spec.get("initContainers") or []
    sidecars = [container for container in init if container.get("restartPolicy") == "Always"]
    total: dict[str, Decimal] = {}
    for container in [*(spec.get("containers") or []), *sidecars]:
        _add(total, amounts(requests(container)))
    for container in (container for container in init if container not in sidecars):
        for resource, value in amounts(requests(container)).items():
            total[resource] = max(total.get(resource, Decimal(0)), value)
    total |= amounts(requests(spec))
    _add(total, amounts(spec.get("overhead") or {}))
    return total


def quota_keys(spec: Object) -> dict[str, Decimal]:
    """Return what one pod takes, by each key that a ResourceQuota can limit."""
    found = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for resource, value in pod_requests(spec).items():
        found |= {f"requests.{resource}": value, resource: value}
    for container in spec.get("containers") or []:
        limits = amounts((container.get("resources") or {}).get("limits") or {})
        named = (name for name in ("cpu", "memory", "ephemeral-storage") if name in limits)
        _add(found, {f"limits.{name}": limits[name] for name in named})
    return found


def extended(name: str) -> bool:
    """Return whether a resource is a device or huge pages, which are whole and cannot be overcommitted."""
    return "/" in name or name.startswith("hugepages-")


def plain(number: Decimal) -> str:
    """Return a number without an exponent and without trailing zeros."""
    return f"{number.normalize():f}"


def _add(total: dict[str, Decimal], values: dict[str, Decimal]) -> None:
    for resource, value in values.items():
        total[resource] = total.get(resource, Decimal(0)) + value
