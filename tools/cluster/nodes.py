"""A cluster's nodes as one table: what they are, what is free on them, how they feel."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tools.cluster.state import State
from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.kube.manifests import Object
from tools.kube.quantity import amount

READY = "Ready"
# HyperPod's labels, and what stands behind their values (SageMaker developer guide, "Resilience-related
# Kubernetes labels by SageMaker HyperPod"); a node takes work while it is Schedulable.
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
DEEP_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"
SCHEDULABLE = "Schedulable"
HEALTH = {
    "Unschedulable": "deep health checks run on it",
    "UnschedulablePendingReplacement": "HyperPod replaces it, where node recovery is automatic",
    "UnschedulablePendingReboot": "HyperPod reboots it, where node recovery is automatic",
}
DEEP = {
    "InProgress": "no work for it until they end",
    "Failed": "HyperPod reboots or replaces it, where node recovery is automatic",
}
# Conditions that are good when True; all others (pressure, repair wanted) are good when False.
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

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def table(state: State) -> list[Node]:
    """Return the nodes of a state, by name."""
    by_node: dict[str, list[Object]] = {}
    for pod in state.of("pods"):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            by_node.setdefault((pod.get("spec") or {}).get("nodeName", ""), []).append(pod)
    rows = [_node(one, by_node.get(one["metadata"]["name"], [])) for one in state.of("nodes")]
    return sorted(rows, key=lambda node: node.name)


def _node(item: Object, pods: list[Object]) -> Node:
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    there = {
        key: int(amount(value) or 0)
        for key, value in (status.get("allocatable") or {}).items()
        if _counts(key)
    }
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    device = next((one for one in (NVIDIA, NEURON) if one in there), None)
    return Node(
        name=metadata["name"],
        ready=conditions.get(READY, {}).get("status") == "True",
        cordoned=bool((item.get("spec") or {}).get("unschedulable")),
        instance=labels.get("node.kubernetes.io/instance-type", "unknown"),
        zone=labels.get("topology.kubernetes.io/zone", "unknown"),
        device=device,
        devices=there.get(device, 0) if device else 0,
        devices_used=_used(pods, device) if device else 0,
        efa=there.get(EFA, 0),
        efa_used=_used(pods, EFA),
        pods=there.get("pods", 0),
        pods_used=len(pods),
        health=labels.get(HEALTH_LABEL),
        deep_check=labels.get(DEEP_LABEL),
        troubles=[*_conditions(conditions), *_labels(labels)],
    )


def _counts(resource: str) -> bool:
    return resource in (NVIDIA, NEURON, EFA, "pods")


def _used(pods: list[Object], resource: str) -> int:
    """Return how many of a resource pods hold: their containers together, or an init container if more."""
    total = 0
    for pod in pods:
        spec = pod.get("spec") or {}
        asked = {
            key: [_request(one, resource) for one in spec.get(key) or []]
            for key in ("containers", "initContainers")
        }
        total += max(sum(asked["containers"]), max(asked["initContainers"], default=0))
    return total


def _request(container: Object, resource: str) -> int:
    resources = container.get("resources") or {}
    value = (resources.get("requests") or {}).get(resource) or (resources.get("limits") or {}).get(resource)
    return int(amount(value) or 0) if value else 0


def _conditions(conditions: dict[str, Object]) -> list[str]:
    bad = []
    for kind, one in conditions.items():
        wanted = "True" if kind in GOOD_WHEN_TRUE else "False"
        if one.get("status") != wanted:
            reason = f" ({one['reason']})" if one.get("reason") else ""
            bad.append(f"{kind} is {one.get('status')}{reason}")
    return bad


def _labels(labels: dict[str, str]) -> list[str]:
    bad = []
    health, deep = labels.get(HEALTH_LABEL), labels.get(DEEP_LABEL)
    if health not in (None, SCHEDULABLE):
        fault = labels.get("sagemaker.amazonaws.com/fault-types") or labels.get(
            "sagemaker.amazonaws.com/fault-type"
        )
        bad.append(f"HyperPod: {health}" + _why(HEALTH.get(health)) + _why(fault))
    if deep not in (None, "Passed"):
        bad.append(f"deep health check: {deep}" + _why(DEEP.get(deep)))
    return bad


def _why(text: str | None) -> str:
    return f" ({text})" if text else ""
