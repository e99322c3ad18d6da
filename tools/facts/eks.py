"""Kubernetes versions of EKS with the end of their support, and a cluster's add-ons: eks.yaml has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

SOURCE = Path(__file__).parent / "eks.yaml"


@dataclass(frozen=True)
class Support:
    """Until when EKS supports a Kubernetes version, at the ordinary and at the higher price."""

    standard_until: date
    extended_until: date


def _load() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(SOURCE)
    return found


_TABLE = _load()
VERSIONS: dict[str, Support] = {name: Support(**row) for name, row in _TABLE["versions"].items()}
# The add-ons of a cluster, in the order of their installation; by Kubernetes version where they are recorded.
ADDONS: dict[str, dict[str, str]] = _TABLE["addons"]
ADDON_NAMES: tuple[str, ...] = tuple(next(iter(ADDONS.values())))
