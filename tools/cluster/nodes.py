"""The nodes of a cluster as a table: type, free capacity, health."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.cluster.snapshot import Snapshot
from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.kube.manifests import Object
from tools.kube.quantity import amounts, pod_requests

# Labels of HyperPod and the meaning of their values (SageMaker developer guide, "Resilience-related
# Kubernetes labels by SageMaker HyperPod"). A node takes pods while it is Schedulable.
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
DEEP_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"
SCHEDULABLE = "Schedulable"
HEALTH = {
    "Unschedulable": "deep health checks are running on it",
    "UnschedulablePendingReplacement": "HyperPod replaces it if node recovery is automatic",
    "UnschedulablePendingReboot": "HyperPod reboots it if node recovery is automatic",
}
DEEP = {
    "InProgress": "the node takes no pods until they finish",
    "Failed": "HyperPod reboots or replaces it if node recovery is automatic",
}
FAULT_LABELS = ("sagemaker.amazonaws.com/fault-types", "sagemaker.amazonaws.com/fault-type")
# Conditions that are good when True. All others, such as MemoryPressure, are good when False.
GOOD_WHEN_TRUE = (
    "Ready",
    "AcceleratedHardwareReady",
    "ContainerRuntimeReady",
    "KernelReady",
    "NetworkingReady",
    "StorageReady",
)


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
    counts = {name: int(value) for name, value in amounts(status.get("allocatable") or {}).items()}
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    device = next((one for one in (NVIDIA, NEURON) if one in counts), None)
    return Node(
        name=metadata["name"],
        ready=conditions.get("Ready", {}).get("status") == "True",
        cordoned=bool((item.get("spec") or {}).get("unschedulable")),
        instance=labels.get("node.kubernetes.io/instance-type", "unknown"),
        zone=labels.get("topology.kubernetes.io/zone", "unknown"),
        device=device,
        devices=counts.get(device, 0) if device else 0,
        devices_used=_used(pods, device) if device else 0,
        efa=counts.get(EFA, 0),
        efa_used=_used(pods, EFA),
        pods=counts.get("pods", 0),
        pods_used=len(pods),
        health=labels.get(HEALTH_LABEL),
        deep_check=labels.get(DEEP_LABEL),
        troubles=[*_conditions(conditions), *_labels(labels)],
    )


def _used(pods: list[Object], resource: str) -> int:
    return sum(int(pod_requests(pod.get("spec") or {}).get(resource, 0)) for pod in pods)


def _conditions(conditions: dict[str, Object]) -> list[str]:
    return [
        f"{kind} is {one.get('status')}{_note(one.get('reason'))}"
        for kind, one in conditions.items()
        if one.get("status") != ("True" if kind in GOOD_WHEN_TRUE else "False")
    ]


def _labels(labels: dict[str, str]) -> list[str]:
    health, deep = labels.get(HEALTH_LABEL), labels.get(DEEP_LABEL)
    troubles = []
    if health not in (None, SCHEDULABLE):
        fault = next((labels[name] for name in FAULT_LABELS if labels.get(name)), None)
        troubles.append(f"HyperPod: {health}{_note(HEALTH.get(health))}{_note(fault)}")
    if deep not in (None, "Passed"):
        troubles.append(f"deep health check: {deep}{_note(DEEP.get(deep))}")
    return troubles


def _note(text: str | None) -> str:
    return f" ({text})" if text else ""
