"""Kubernetes versions of EKS with the end of their support, and the add-ons of a cluster."""

from dataclasses import dataclass
from datetime import date

from tools.core.tables import load

_TABLE = load("facts/eks.yaml")


@dataclass(frozen=True)
class Support:
    """The last days of standard support and of extended support, which costs more."""

    standard_until: date
    extended_until: date


VERSIONS: dict[str, Support] = {name: Support(**row) for name, row in _TABLE["versions"].items()}
# The add-ons of a cluster in the order of their installation, by Kubernetes version.
ADDONS: dict[str, dict[str, str]] = _TABLE["addons"]
ADDON_NAMES: tuple[str, ...] = tuple(next(iter(ADDONS.values())))
