"""What a pod asks for: quantities, requests of a whole pod, accelerators."""

from __future__ import annotations

from decimal import Decimal

from tools.kube.manifests import Object
from tools.kube.quantity import amount, requests
from tools.preflight.subject import ACCELERATORS, EFA, Template

MIB = Decimal(2**20)


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


def _of(container: Object, resource: str) -> Decimal:
    return amount(requests(container).get(resource, 0)) or Decimal(0)
