"""The nodes of a cluster as facts of its cluster.env: what `yard cluster init` writes and checks read.

Nodes of a known EC2 type are `NODES_P5=p5.48xlarge 2-2 us-west-2b` (tools/cluster/spec.py). All others are

    MACHINES_1=2 cpu=3920m memory=14162Mi nvidia.com/gpu=8 with kubernetes.io/arch=amd64

with the number of nodes, what pods can use on each of them (allocatable), and their labels.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from tools.cluster.cluster_env import Fact
from tools.cluster.nodes import INSTANCE_TYPE, ZONE_LABEL
from tools.cluster.spec import NODES, NodeGroup, Spec
from tools.core import UserError
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES, Instance
from tools.kube import Object, selectors
from tools.kube.quantity import amounts, extended, plain, quantity

MACHINES = "MACHINES_"
MIB = 2**20
ARCHITECTURE = "kubernetes.io/arch"
# The labels by which cells choose nodes.
LABELS = (ARCHITECTURE, INSTANCE_TYPE, "nvidia.com/gpu.product")


@dataclass(frozen=True)
class Machines:
    """`count` nodes that are alike: what pods can use on one of them, and the labels that are known."""

    fact: str
    title: str
    count: int
    room: Mapping[str, Decimal]
    labels: Mapping[str, tuple[str, ...]]  # the values that a label may have
    absent: frozenset[str] = frozenset()  # labels that the nodes do not have


def facts(nodes: Iterable[Object], known: Mapping[str, Fact], zones: Collection[str]) -> dict[str, str]:
    """Return the facts about nodes in the `zones` of the cluster. Types of `known` groups are left out."""
    groups = (fact.value.split() for name, fact in known.items() if name.startswith(NODES))
    there = {words[0].removeprefix(HYPERPOD_PREFIX) for words in groups if words}
    ours: dict[tuple[str, str], list[Object]] = {}
    others: dict[tuple[str, ...], list[Object]] = {}
    for node in nodes:
        machine, labels = instance(node), selectors.labels_of(node)
        zone = labels.get(ZONE_LABEL, "")
        if machine is not None and (zone in zones or not machine.efa):
            if machine.name not in there:
                ours.setdefault((machine.name, zone if machine.efa else ""), []).append(node)
            continue
        words = tuple(f"{key}={labels[key]}" for key in LABELS if key in labels)
        others.setdefault((*_devices(node), "with", *words), []).append(node)
    found = {}
    for (kind, zone), group in sorted(ours.items()):
        places = {selectors.labels_of(node).get(ZONE_LABEL, "") for node in group}
        shown = ",".join(sorted(places)) if places <= set(zones) else ""
        several = zone and sum(other == kind for other, _ in ours) > 1
        name = f"{kind} {zone}" if several else kind
        value = f"{kind} {len(group)}-{len(group)} {shown}".strip()
        found[NODES + re.sub(r"[^A-Z0-9]+", "_", name.upper())] = value
    for number, (words, group) in enumerate(sorted(others.items()), 1):
        found[f"{MACHINES}{number}"] = f"{len(group)} {_least(group)} {' '.join(words)}".removesuffix(" with")
    return found


def usable(node: Object) -> bool:
    """Return whether a node is ready and takes the pods of jobs."""
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    machine = instance(node)
    # Taints with the name of the node's own device are tolerated by pods that ask for it.
    own = {"key": machine.device_resource if machine else None, "operator": "Exists"}
    return ready and not selectors.untolerated({"tolerations": [own] if own["key"] else []}, node)


def instance(node: Object) -> Instance | None:
    """Return the EC2 instance type of a node, if it is known."""
    return INSTANCES.get(str(selectors.labels_of(node).get(INSTANCE_TYPE)).removeprefix(HYPERPOD_PREFIX))


def read(spec: Spec) -> list[Machines]:
    """Return the machines of a cluster.env. Raises UserError for a fact that is not in the form above."""
    others = [_other(name, fact.value) for name, fact in spec.facts.items() if name.startswith(MACHINES)]
    return [*map(_of_group, spec.groups), *others]


def _of_group(group: NodeGroup) -> Machines:
    machine = group.instance
    room = {"cpu": Decimal(machine.allocatable_cpu_m) / 1000, EFA: Decimal(machine.efa)}
    room["memory"] = Decimal(machine.allocatable_memory_mib - machine.hugepages_2mi_mib) * MIB
    room["hugepages-2Mi"] = Decimal(machine.hugepages_2mi_mib) * MIB
    room |= {machine.device_resource: Decimal(machine.accelerators)} if machine.device_resource else {}
    labels = {INSTANCE_TYPE: machine.node_names, ARCHITECTURE: (machine.architecture,)}
    labels |= {ZONE_LABEL: group.zones} if group.zones else {}
    return Machines(group.fact, machine.name, group.most, room, labels)


def _other(name: str, value: str) -> Machines:
    amounts_, _, labels = value.partition(" with ")
    count, *words = amounts_.split()
    pairs = [word.partition("=") for word in words]
    if not count.isdigit() or not all(equals for _, equals, _ in pairs):
        hint = f"such as {name}=2 cpu=3920m memory=14162Mi with {ARCHITECTURE}=amd64"
        raise UserError(f"{name}={value}: not COUNT RESOURCE=AMOUNT", hint)
    room = {key: quantity(text) for key, _, text in pairs}
    known = {key: (text,) for key, _, text in (word.partition("=") for word in labels.split())}
    title = " ".join(known.get(INSTANCE_TYPE, ())) or f"machine of {name}"
    return Machines(name, title, int(count), room, known, frozenset(LABELS) - set(known))


def _devices(node: Object) -> tuple[str, ...]:
    room = amounts((node.get("status") or {}).get("allocatable") or {})
    return tuple(f"{key}={plain(room[key])}" for key in sorted(room) if extended(key) and room[key])


def _least(nodes: list[Object]) -> str:
    """Return the processors and memory that every one of the nodes has."""
    rooms = [amounts((node.get("status") or {}).get("allocatable") or {}) for node in nodes]
    cpu = min(room.get("cpu", Decimal(0)) for room in rooms)
    memory = min(room.get("memory", Decimal(0)) for room in rooms)
    return f"cpu={int(cpu * 1000)}m memory={int(memory // MIB)}Mi"
