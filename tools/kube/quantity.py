"""Kubernetes quantities (`500m`, `3Gi`, `2`): read, printed, and what a container requests.

Source: k8s.io/apimachinery/pkg/api/resource (quantity.go).
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from tools.core.errors import UserError
from tools.kube.manifests import Object

UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
}


def quantity(text: str) -> Decimal:
    """Return a Kubernetes quantity (`500m`, `3Gi`, `2`) as a number; UserError when it is none."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})", str(text).strip())
    try:
        if match and match[2] in UNITS:
            return Decimal(match[1]) * UNITS[match[2]]
    except InvalidOperation:
        pass
    raise UserError(f"{text!r} is no Kubernetes quantity such as 500m, 2 or 3Gi")


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


def extended(name: str) -> bool:
    """Say whether a resource is a device's or a huge page's: whole, and not to be overcommitted."""
    return "/" in name or name.startswith("hugepages-")


def plain(number: Decimal) -> str:
    """Return a number without an exponent and without zeros at its end."""
    return f"{number.normalize():f}"
