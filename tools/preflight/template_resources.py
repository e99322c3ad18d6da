"""What a pod asks for: quantities, requests of a whole pod, accelerators."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tools.core.errors import UserError
from tools.preflight.subject import ACCELERATORS, EFA, Template
from tools.simulator.environment import quantity

Object = dict[str, Any]
MIB = Decimal(2**20)


def amount(value: Any) -> Decimal | None:
    """Return a quantity as a number, or None where it is none."""
    try:
        return quantity(str(value))
    except UserError:
        return None


def requests(container: Object) -> Object:
    """Return what a container requests; a limit without a request is a request too."""
    resources = container.get("resources") or {}
    return (resources.get("limits") or {}) | (resources.get("requests") or {})


def asked(template: Template, resource: str) -> Decimal:
    """Return how much of a resource one pod asks for: its containers together, or its largest init
    container.
    """
    together = sum((_of(container, resource) for _, container in template.containers(init=False)), Decimal(0))
    first = (_of(container, resource) for container in template.spec.get("initContainers") or [])
    return max([together, *first])


def accelerators(template: Template) -> tuple[str, Decimal]:
    """Return the accelerator resource that a pod asks for and how many; an empty name for none."""
    for name in ACCELERATORS:
        count = asked(template, name)
        if count > 0:
            return name, count
    return "", Decimal(0)


def efa(template: Template) -> Decimal:
    """Return how many EFA interfaces a pod asks for."""
    return asked(template, EFA)


def extended(name: str) -> bool:
    """Say whether a resource is a device's or a huge page's: whole, and not to be overcommitted."""
    return "/" in name or name.startswith("hugepages-")


def plain(number: Decimal) -> str:
    """Return a number without an exponent and without zeros at its end."""
    return f"{number.normalize():f}"


def _of(container: Object, resource: str) -> Decimal:
    return amount(requests(container).get(resource, 0)) or Decimal(0)
