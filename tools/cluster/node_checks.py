"""Checks of what the nodes of a cluster advertise. A check that does not apply returns None."""

from __future__ import annotations

from tools.cluster.finding import Finding, bad, good, warn
from tools.cluster.nodes import HEALTH_LABEL, Node, table
from tools.cluster.snapshot import Snapshot
from tools.cluster.spec import Spec
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES, Instance

# Conditions that the EKS node monitoring agent sets (EKS user guide, node health).
AGENT_CONDITIONS = {"AcceleratedHardwareReady", "KernelReady", "NetworkingReady", "StorageReady"}
FREE_PODS = 3  # a worker, a debug pod, a preparation job


def ready(spec: Spec, snapshot: Snapshot) -> Finding:
    """Check that nodes exist and are ready."""
    rows = table(snapshot)
    ill = [
        f"{one.name}: {'; '.join(one.troubles) or 'not ready'}"
        for one in rows
        if one.troubles or not one.ready
    ]
    if not any(one.ready for one in rows):
        remedy = f"yard cluster scale {spec.title} GROUP N"
        return bad("nodes", f"none of {len(rows)} nodes is ready", remedy, *ill)
    if ill:
        return warn("nodes", f"{len(ill)} of {len(rows)} nodes have problems", "yard cluster nodes", *ill)
    return good("nodes", f"{len(rows)} ready")


def devices(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Compare the accelerators of ready nodes with the table of instance types."""
    nodes = [(one, machine) for one, machine in _known(snapshot) if machine.accelerators]
    fewer = [
        f"{one.name} ({one.instance}): {one.devices} of {machine.accelerators} {machine.device_resource}"
        for one, machine in nodes
        if one.devices < machine.accelerators
    ]
    if not nodes:
        return None
    if fewer:
        remedy = "install the device plugin (base/plugins); replace a node that advertises only some devices"
        return bad("devices", f"{len(fewer)} of {len(nodes)} nodes advertise too few", remedy, *fewer)
    return good("devices", f"{len(nodes)} nodes advertise all their devices")


def efa(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Compare the EFA interfaces of ready nodes that have accelerators with the table of instance types."""
    nodes = [(one, machine) for one, machine in _known(snapshot) if machine.efa and machine.accelerators]
    fewer = [
        f"{one.name} ({one.instance}): {one.efa} of {machine.efa}"
        for one, machine in nodes
        if one.efa < machine.efa
    ]
    none = [f"{one.name} ({one.instance}): 0 of {machine.efa}" for one, machine in nodes if one.efa == 0]
    if not nodes:
        return None
    if none:
        remedy = "set efaEnabled for the group, and install the EFA device plugin (base/plugins/efa)"
        return bad("efa", f"{len(none)} of {len(nodes)} nodes advertise no {EFA}", remedy, *none)
    if fewer:
        summary = f"{len(fewer)} nodes have fewer interfaces than their instance type"
        return warn("efa", summary, "yard cluster stack", *fewer)
    return good("efa", f"{len(nodes)} nodes have all interfaces of their instance type")


def health_agents(spec: Spec, snapshot: Snapshot) -> Finding:
    """Check that each node is monitored: by the EKS agent (conditions) or by HyperPod (label)."""
    silent = []
    for item in snapshot.of("nodes"):
        kinds = {one["type"] for one in (item.get("status") or {}).get("conditions") or []}
        if HEALTH_LABEL not in (item["metadata"].get("labels") or {}) and not kinds & AGENT_CONDITIONS:
            silent.append(item["metadata"]["name"])
    if silent:
        remedy = "install the add-on eks-node-monitoring-agent, or HyperPod's health monitoring agent"
        return warn("health agents", f"the health of {len(silent)} nodes is not monitored", remedy, *silent)
    return good("health agents", "the health of every node is monitored")


def pod_capacity(spec: Spec, snapshot: Snapshot) -> Finding:
    """Check that ready nodes can take FREE_PODS more pods."""
    full = [
        f"{one.name}: {one.pods_used} of {one.pods}"
        for one in table(snapshot)
        if one.ready and one.pods - one.pods_used < FREE_PODS
    ]
    if full:
        remedy = f"yard cluster network {spec.title} --prefix-delegation on"
        return warn(
            "pods", f"{len(full)} nodes have room for fewer than {FREE_PODS} more pods", remedy, *full
        )
    return good("pods", "every node has room for more pods")


def _known(snapshot: Snapshot) -> list[tuple[Node, Instance]]:
    rows = [
        (one, INSTANCES.get(one.instance.removeprefix(HYPERPOD_PREFIX)))
        for one in table(snapshot)
        if one.ready
    ]
    return [(one, machine) for one, machine in rows if machine is not None]
