"""The nodes of a cluster as a table: type, free capacity, health."""

from dataclasses import dataclass, field
from typing import Any

from tools.cells.knobs import DEVICE
from tools.cluster.snapshot import Snapshot
from tools.core.tables import load
from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.facts.node_labels import DEEP, HEALTH, hyperpod_faults
from tools.kube import Object, quantity

INSTANCE_TYPE, ZONE_LABEL = "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"
_TABLE: dict[str, Any] = load("cluster/tables.yaml")["node health"]


@dataclass(frozen=True)
class Node:
    """One node. Devices and pods are counts; `troubles` are conditions and labels that are not good."""

    name: str
    ready: bool
    cordoned: bool
    instance: str
    zone: str
    device: str | None
    devices: int
    devices_used: int
    efa: int
    efa_used: int
    cpu_m: int  # allocatable, in thousandths of a processor
    memory_mib: int  # allocatable
    pods: int
    pods_used: int
    health: str | None
    deep_check: str | None
    troubles: list[str] = field(default_factory=list)


def table(snapshot: Snapshot) -> list[Node]:
    """Return the nodes of a snapshot, sorted by name."""
    by_node: dict[str, list[Object]] = {}
    for pod in snapshot.of("pods"):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            by_node.setdefault((pod.get("spec") or {}).get("nodeName", ""), []).append(pod)
    rows = [_node(one, by_node.get(one["metadata"]["name"], [])) for one in snapshot.of("nodes")]
    return sorted(rows, key=lambda node: node.name)


def _node(item: Object, pods: list[Object]) -> Node:
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    exact = quantity.amounts(status.get("allocatable") or {})
    counts = {name: int(value) for name, value in exact.items()}
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    whole = [one for one in (NVIDIA, NEURON) if one in counts]
    others = sorted(name for name in counts if DEVICE.search(name))
    device = next((one for one in (*whole, *others) if counts[one]), next(iter(whole), None))
    return Node(
        name=metadata["name"],
        ready=conditions.get("Ready", {}).get("status") == "True",
        cordoned=bool((item.get("spec") or {}).get("unschedulable")),
        instance=labels.get(INSTANCE_TYPE, "unknown"),
        zone=labels.get(ZONE_LABEL, "unknown"),
        device=device,
        devices=counts.get(device, 0) if device else 0,
        devices_used=_used(pods, device) if device else 0,
        efa=counts.get(EFA, 0),
        efa_used=_used(pods, EFA),
        cpu_m=int(exact.get("cpu", 0) * 1000),
        memory_mib=counts.get("memory", 0) // 2**20,
        pods=counts.get("pods", 0),
        pods_used=len(pods),
        health=labels.get(HEALTH),
        deep_check=labels.get(DEEP),
        troubles=[*_conditions(conditions), *_labels(labels)],
    )


def _used(pods: list[Object], resource: str) -> int:
    return sum(int(quantity.pod_requests(pod.get("spec") or {}).get(resource, 0)) for pod in pods)


def _conditions(conditions: dict[str, Object]) -> list[str]:
    return [
        f"{kind} is {one.get('status')}{_note(one.get('reason'))}"
        for kind, one in conditions.items()
        if one.get("status") != ("True" if kind in _TABLE["good when true"] else "False")
    ]


def _labels(labels: dict[str, str]) -> list[str]:
    health, deep = labels.get(HEALTH), labels.get(DEEP)
    troubles = []
    if health not in (None, "Schedulable"):
        fault = next((one.partition(" ")[2] for one in hyperpod_faults(labels)), None)
        troubles.append(f"HyperPod: {health}{_note(_TABLE['health'].get(health))}{_note(fault)}")
    if deep not in (None, "Passed"):
        troubles.append(f"deep health check: {deep}{_note(_TABLE['deep'].get(deep))}")
    return troubles


def _note(text: str | None) -> str:
    return f" ({text})" if text else ""
