"""Checks of what the nodes of a cluster advertise. A check that does not apply returns None."""

from tools.cells import instance_patch
from tools.cluster.finding import Finding, bad, good, unknown, warn
from tools.cluster.nodes import Node, table
from tools.cluster.snapshot import DAEMONS, Snapshot
from tools.cluster.spec import Spec
from tools.core.tables import load
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES, Instance
from tools.facts.node_labels import HEALTH
from tools.kube import Object

# Conditions that the EKS node monitoring agent sets (EKS user guide, node health), and those of node-problem-detector,
# which GKE and AKS run.
AGENT_CONDITIONS = {"AcceleratedHardwareReady", "KernelReady", "NetworkingReady", "StorageReady"}
AGENT_CONDITIONS |= {"KernelDeadlock", "ReadonlyFilesystem"}
EC2 = "aws://"  # the start of spec.providerID of an EC2 instance
FREE_PODS = 3  # a worker, a debug pod, a preparation job
# Where nodeadm puts the kubelet's configuration (awslabs/amazon-eks-ami, 2026-11); files of it end with .conf.
KUBELET_CONFIG = "/etc/kubernetes/kubelet/config.json.d"


def ready(spec: Spec, snapshot: Snapshot) -> Finding:
    """Check that nodes exist and are ready."""
    rows = table(snapshot)
    ill = [f"{one.name}: {'; '.join(one.troubles) or 'not ready'}" for one in rows if one.troubles or not one.ready]
    if not any(one.ready for one in rows):
        remedy = f"yard cluster scale {spec.title} GROUP N" if spec.get("CLUSTER_NAME") else "start a node"
        return bad("nodes", f"none of {len(rows)} nodes is ready", remedy, *ill)
    if ill:
        return warn("nodes", f"{len(ill)} of {len(rows)} nodes have problems", "yard cluster nodes", *ill)
    return good("nodes", f"{len(rows)} ready")


def devices(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Compare the accelerators of ready nodes with the table of instance types; parts of cards (MIG) count as all."""
    nodes = _accelerated(snapshot)
    fewer = [
        f"{one.name} ({one.instance}): {one.devices} of {machine.accelerators} {machine.device_resource}"
        for one, machine in nodes
        if one.devices < machine.accelerators and one.device in (None, machine.device_resource)
    ]
    if fewer:
        remedy = "install the device plugin (base/plugins); replace a node that advertises only some devices"
        return bad("devices", f"{len(fewer)} of {len(nodes)} nodes advertise too few", remedy, *fewer)
    return good("devices", f"{len(nodes)} nodes advertise all their devices") if nodes else None


def room(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that a cell's pod, which takes a node whole, fits what the kubelet leaves to pods.

    The pod's requests follow from the fact table (tools/cells/instance_patch.py). A node has less where
    HyperPod, a kubelet's configuration or an AMI reserves more.
    """
    nodes = _accelerated(snapshot)
    small = []
    for one, machine in nodes:
        cpu, memory = instance_patch.cpus(machine) * 1000, instance_patch.memory_mib(machine)
        if one.cpu_m < cpu or one.memory_mib < memory:
            has = f"{one.cpu_m}m processors and {one.memory_mib}Mi"
            small.append(f"{one.name} ({one.instance}): {has} allocatable, a pod asks for {cpu}m and {memory}Mi")
    if small:
        remedy = "describe such nodes (yard new hardware NAME --node NODE), or let the kubelet reserve less"
        return bad("room", f"{len(small)} of {len(nodes)} nodes are too small for a cell's pod", remedy, *small)
    return good("room", f"a cell's pod fits each of {len(nodes)} nodes with accelerators") if nodes else None


def efa(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Compare the EFA interfaces of ready nodes that have accelerators with the table of instance types."""
    nodes = [(one, machine) for one, machine in _accelerated(snapshot) if machine.efa]
    lacking = [(one, machine) for one, machine in nodes if one.efa < machine.efa]
    fewer = [f"{one.name} ({one.instance}): {one.efa} of {machine.efa}" for one, machine in lacking]
    none = [line for (one, _), line in zip(lacking, fewer, strict=True) if one.efa == 0]
    if none:
        remedy = "set efaEnabled for the group, and install the EFA device plugin (base/plugins/efa)"
        return bad("efa", f"{len(none)} of {len(nodes)} nodes advertise no {EFA}", remedy, *none)
    if fewer:
        summary = f"{len(fewer)} nodes have fewer interfaces than their instance type"
        return warn("efa", summary, "yard cluster stack", *fewer)
    return good("efa", f"{len(nodes)} nodes have all interfaces of their instance type") if nodes else None


def health_agents(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that each node is monitored: by an agent's conditions, or by HyperPod (label)."""
    if not snapshot.of("nodes"):
        return None
    silent = []
    for item in snapshot.of("nodes"):
        kinds = {one["type"] for one in (item.get("status") or {}).get("conditions") or []}
        if HEALTH not in (item["metadata"].get("labels") or {}) and not kinds & AGENT_CONDITIONS:
            silent.append(item["metadata"]["name"])
    if silent:
        remedy = "install the add-on eks-node-monitoring-agent, or HyperPod's health monitoring agent"
        if not spec.get("CLUSTER_NAME") and not any(map(is_on_ec2, snapshot.of("nodes"))):
            remedy = "install a monitor of nodes, such as node-problem-detector"
        return warn("health agents", f"the health of {len(silent)} nodes is not monitored", remedy, *silent)
    return good("health agents", "the health of every node is monitored")


def pod_capacity(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that ready nodes can take FREE_PODS more pods, and say which maxPods would let them.

    EKS sets maxPods when a node of a managed group starts (EKS user guide, how maxPods is determined). Elsewhere, as on
    HyperPod, the kubelet reads it from the directory of its configuration.
    """
    ready = [one for one in table(snapshot) if one.ready]
    full = [one for one in ready if one.pods - one.pods_used < FREE_PODS]
    if not ready:
        return None
    if full:
        wanted = max(one.pods_used for one in full) + FREE_PODS
        remedy = f"maxPods: {wanted} or more in a file of {KUBELET_CONFIG} on each node, then restart the kubelet"
        if spec.get("CLUSTER_NAME"):
            prefixes = f"yard cluster network {spec.title} --prefix-delegation on"
            kept = f"on HyperPod, {remedy}" if spec.get("HYPERPOD_CLUSTER_NAME") else "then replace the nodes"
            remedy = f"{prefixes}; {kept}"
        lines = [f"{one.name}: {one.pods_used} of {one.pods}, wanted {one.pods_used + FREE_PODS}" for one in full]
        return warn("pods", f"{len(full)} nodes have room for fewer than {FREE_PODS} more pods", remedy, *lines)
    return good("pods", "every node has room for more pods")


def zones(spec: Spec, snapshot: Snapshot) -> Finding:
    """Check by their labels that the nodes of each type with EFA are in one zone."""
    found: dict[str, set[str]] = {}
    for one, machine in _accelerated(snapshot):
        if machine.efa:
            found.setdefault(one.instance, set()).add(one.zone)
    return one_zone(found, [f"{kind}: {', '.join(sorted(places))}" for kind, places in sorted(found.items())])


def one_zone(found: dict[str, set[str]], lines: list[str]) -> Finding:
    """Judge the zones of each type of nodes with EFA; `lines` describe them."""
    if any(len(places) > 1 for places in found.values()):
        remedy = "use one zone for each group; EFA does not cross zones"
        return bad("zone", "nodes that use EFA are in several zones", remedy, *lines)
    return good("zone", "each type is in one zone" if lines else "no running node uses EFA", *lines)


def network_plugin(spec: Spec, snapshot: Snapshot) -> Finding:
    """Return which network plugin the DaemonSets show. Whether it enforces policies is tried, not read."""
    known: dict[str, str] = load("cluster/tables.yaml")["network plugins"]
    lines = [
        f"{known[name]}: {one['spec']['template']['spec']['containers'][0].get('image')}"
        for one in snapshot.of(DAEMONS)
        if (name := one["metadata"]["name"]) in known
    ]
    remedy = "yard cluster validate tries whether it enforces NetworkPolicies"
    if not lines:
        return unknown("cni", "no DaemonSet is a known network plugin; it may be a part of the node", remedy)
    return good("cni", lines[0], *lines[1:], remedy)


def is_on_ec2(node: Object) -> bool:
    """Return whether a node is an EC2 instance."""
    return str((node.get("spec") or {}).get("providerID")).startswith(EC2)


def _accelerated(snapshot: Snapshot) -> list[tuple[Node, Instance]]:
    """Return the ready nodes of known types with accelerators."""
    rows = [(one, INSTANCES.get(one.instance.removeprefix(HYPERPOD_PREFIX))) for one in table(snapshot) if one.ready]
    return [(one, machine) for one, machine in rows if machine is not None and machine.accelerators]
