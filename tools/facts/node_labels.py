"""Labels of nodes by Kubernetes, EKS, Karpenter, HyperPod and NVIDIA's agents, from node_labels.yaml."""

from collections.abc import Mapping
from typing import Any

from tools.core.tables import load

# The labels of HyperPod's agents, and those of them that name a fault.
HYPERPOD = "sagemaker.amazonaws.com/"
HEALTH, DEEP = f"{HYPERPOD}node-health-status", f"{HYPERPOD}deep-health-check-status"
FAULTS = ("fault-types", "fault-reasons", "fault-type", "fault-reason")

_ROWS: dict[str, Any] = load("facts/node_labels.yaml")
_FAMILIES: dict[str, list[str]] = _ROWS["families"]
_SAME = [f"{prefix}{name}" for prefix, other in _ROWS["same"].items() for name in _FAMILIES[other]]
_WHOLE = [f"{prefix}{name}" for prefix, names in _FAMILIES.items() for name in names]

KNOWN: tuple[str, ...] = (*_ROWS["keys"], *_WHOLE, *_SAME)
VALUES: dict[str, list[str]] = _ROWS["values"]
POOLS, TOLERANT = tuple(_ROWS["pools"]), tuple(_ROWS["tolerant"])
OPEN: tuple[str, ...] = tuple(_ROWS["open"])
# Below these prefixes the owner of the prefix decides which labels there are.
RESERVED: tuple[str, ...] = tuple(
    sorted({f"{key.partition('/')[0]}/" for key in KNOWN if not key.startswith("nvidia.com/")})
)


def hyperpod_faults(labels: Mapping[str, str]) -> list[str]:
    """Return the faults that HyperPod's labels of a node name, as `fault-types NvidiaXID`."""
    return [f"{key} {labels[HYPERPOD + key]}" for key in FAULTS if labels.get(HYPERPOD + key)]
