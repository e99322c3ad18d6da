"""The nodes of a cluster as facts of its cluster.env: what `yard cluster init` writes and checks read.

Nodes of a known EC2 type are `NODES_P5=p5.48xlarge 2-2 us-west-2b` (tools/cluster/spec.py). All others are

    MACHINES_1=2 cpu=3920m memory=14162Mi nvidia.com/gpu=8 with kubernetes.io/arch=amd64 tainted pool=ml:NoSchedule

with the number of nodes, what pods can use on each of them (allocatable), their labels and taints. What such a line
does not state of cpu, memory and ephemeral-storage is unknown; of devices and huge pages, the nodes have none.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from string import ascii_letters

from tools.cluster.cluster_env import Fact
from tools.cluster.nodes import INSTANCE_TYPE, ZONE_LABEL
from tools.cluster.spec import NODES, NodeGroup, Spec
from tools.core import UserError, nearest
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES, NEURON, NVIDIA, Instance
from tools.facts.node_labels import HYPERPOD, POOLS, TOLERANT
from tools.kube import Object, selectors
from tools.kube.quantity import UNITS, amount, amounts, extended, plain

MACHINES = "MACHINES_"
MIB = 2**20
ARCHITECTURE = "kubernetes.io/arch"
# The labels by which cells choose nodes: nodes of a fact without one of them do not have it.
LABELS = (ARCHITECTURE, INSTANCE_TYPE, "nvidia.com/gpu.product")
TAINT = re.compile(r"(?P<key>[\w./-]+)(?:=(?P<value>[\w.-]*))?:(?P<effect>NoSchedule|NoExecute)")
# Of Kubernetes and HyperPod, for nodes that no training may use now or ever.
NOT_OURS = ("node.kubernetes.io/", "node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/", HYPERPOD)
PARTS = re.compile(r"nvidia\.com/(?:mig-|gpu\.)")  # of a card
RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")  # besides devices and huge pages
# Resources by the word for which somebody may write another, such as `gpu`.
WORDS = {name.rpartition("/")[2]: name for name in (*RESOURCES, "hugepages-2Mi", NVIDIA, NEURON, EFA)}
MOST = Decimal(2**63 - 1)  # that Kubernetes counts to


@dataclass(frozen=True)
class Machines:
    """`count` nodes that are alike: what pods can use on one of them, and the labels that are known."""

    fact: str
    title: str
    count: int
    room: Mapping[str, Decimal]
    labels: Mapping[str, tuple[str, ...]]  # the values that a label may have
    absent: frozenset[str] = frozenset()  # labels that the nodes do not have
    taints: tuple[Object, ...] = ()  # that keep pods away
    by_device: bool = False  # whether pods that ask for a device get in past a taint of its name


def facts(nodes: Iterable[Object], known: Mapping[str, Fact], zones: Collection[str]) -> dict[str, str]:
    """Return the facts about nodes in the `zones` of the cluster. Types of `known` groups are left out."""
    groups = (fact.value.split() for name, fact in known.items() if name.startswith(NODES))
    there = {words[0].removeprefix(HYPERPOD_PREFIX) for words in groups if words}
    ours: dict[tuple[str, str], list[Object]] = {}
    others: dict[tuple[tuple[int, int], tuple[str, ...]], list[Object]] = {}
    for node in nodes:
        machine, labels = instance(node), selectors.labels_of(node)
        zone = labels.get(ZONE_LABEL, "")
        taints = _taints(node)
        stated = machine is not None and machine.name in there
        if machine and (zone in zones or not machine.efa) and (stated or _is_whole(node, machine, taints)):
            if not stated:
                ours.setdefault((machine.name, zone if machine.efa else ""), []).append(node)
            continue
        pairs = [f"{key}={labels[key]}" for key in (*LABELS, ZONE_LABEL, *POOLS) if key in labels]
        words = [*(["with", *pairs] if pairs else []), *(["tainted", *taints] if taints else [])]
        others.setdefault((_size(node), (*_devices(node), *words)), []).append(node)
    found: dict[str, str] = {}
    for (kind, zone), group in sorted(ours.items()):
        places = {selectors.labels_of(node).get(ZONE_LABEL, "") for node in group}
        shown = ",".join(sorted(places)) if places <= set(zones) else ""
        several = zone and sum(other == kind for other, _ in ours) > 1
        name = f"{kind} {zone}" if several else kind
        value = f"{kind} {len(group)}-{len(group)} {shown}".strip()
        found[NODES + re.sub(r"[^A-Z0-9]+", "_", name.upper())] = value
    for number, ((_, alike), group) in enumerate(sorted(others.items(), key=lambda pair: pair[0]), 1):
        found[f"{MACHINES}{number}"] = f"{len(group)} {_least(group)} {' '.join(alike)}".rstrip()
    return found


def usable(node: Object) -> bool:
    """Return whether a node is ready and takes the pods of jobs, or of those that tolerate a taint of its pool."""
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return ready and not any(str(taint["key"]).startswith(NOT_OURS) for taint in selectors.untolerated({}, node))


def _taints(node: Object) -> list[str]:
    """Return the taints that keep pods from a node, as they are written into a fact."""
    found = selectors.untolerated({}, node)
    pairs = ((one["key"] + (f"={one['value']}" if one.get("value") else ""), one["effect"]) for one in found)
    return sorted(f"{pair}:{effect}" for pair, effect in pairs)


def _is_whole(node: Object, machine: Instance, taints: list[str]) -> bool:
    """Return whether pods find on a node what its type has: whole devices, and no taint but that of these devices.

    A node without its device plugin offers none yet.
    """
    there = amounts((node.get("status") or {}).get("allocatable") or {})
    count = there.get(machine.device_resource or "") or machine.accelerators
    parts = any(PARTS.match(name) and there[name] for name in there)
    foreign = any(re.split("[=:]", one)[0] != machine.device_resource for one in taints)
    return count == machine.accelerators and not parts and not foreign


def instance(node: Object) -> Instance | None:
    """Return the EC2 instance type of a node, if it is known."""
    return INSTANCES.get(str(selectors.labels_of(node).get(INSTANCE_TYPE)).removeprefix(HYPERPOD_PREFIX))


def read(spec: Spec) -> list[Machines]:
    """Return the machines of a cluster.env. Raises UserError for a fact that is not in the form above."""
    others = [_other(spec, name) for name in spec.facts if name.startswith(MACHINES)]
    return [*map(_of_group, spec.groups), *others]


def _of_group(group: NodeGroup) -> Machines:
    machine = group.instance
    room = {"cpu": Decimal(machine.allocatable_cpu_m) / 1000, EFA: Decimal(machine.efa)}
    room["memory"] = Decimal(machine.allocatable_memory_mib - machine.hugepages_2mi_mib) * MIB
    room["hugepages-2Mi"] = Decimal(machine.hugepages_2mi_mib) * MIB
    room |= _of_devices(machine)
    labels = {INSTANCE_TYPE: machine.node_names, ARCHITECTURE: (machine.architecture,)}
    labels |= {ZONE_LABEL: group.zones} if group.zones else {}
    return Machines(group.fact, machine.name, group.most, room, labels)


def _of_devices(machine: Instance) -> dict[str, Decimal]:
    """Return the devices of an instance type, of Neuron by each name under which its plugin offers them."""
    count = Decimal(machine.accelerators)
    if machine.device_resource != NEURON:
        return {machine.device_resource: count} if machine.device_resource else {}
    return {NEURON: count, f"{NEURON}device": count, f"{NEURON}core": count * machine.cores_per_accelerator}


def _other(spec: Spec, name: str) -> Machines:
    value, hint = spec.facts[name].value, f"such as {name}=2 cpu=3920m memory=14162Mi with {ARCHITECTURE}=amd64"
    at = f"{spec.at(name)}: {name}={value}"
    value, _, tainted = value.partition(" tainted ")
    amounts_, _, labels = value.partition(" with ")
    count, *words = amounts_.split() or [""]
    if not re.fullmatch("[0-9]{1,6}", count):
        raise UserError(f"{at}: {count or 'nothing'} is not a number of nodes", hint)
    if lone := [word for word in [*words, *labels.split()] if "=" not in word]:
        raise UserError(f"{at}: {lone[0]} is not NAME=VALUE", hint)
    room: dict[str, Decimal] = {}
    for key, _, text in (word.partition("=") for word in words):
        if key in room:
            raise UserError(f"{at}: {key} is stated twice")
        room[key] = _amount(at, key, text)
    known = {key: (text,) for key, _, text in (word.partition("=") for word in labels.split())}
    title = " ".join(known.get(INSTANCE_TYPE, ())) or f"machine of {name}"
    taints = tuple(_taint(at, word) for word in tainted.split())
    tolerant = spec.get("CLUSTER_NAME") is not None or any(key.startswith(TOLERANT) for key in known)  # EKS is one
    return Machines(name, title, int(count), room, known, frozenset(LABELS) - set(known), taints, tolerant)


def _taint(at: str, word: str) -> Object:
    found = TAINT.fullmatch(word)
    if found is None:
        raise UserError(f"{at}: {word} is not a taint that keeps pods away", "such as pool=ml:NoSchedule")
    return found.groupdict()


def _amount(at: str, key: str, text: str) -> Decimal:
    """Return the amount of a resource. Raises UserError for a name that no node has, and for a wrong amount."""
    if key not in RESOURCES and not extended(key):
        match = WORDS.get(nearest(key.lower(), WORDS) or "")
        hint = f"did you mean {match}?" if match else f"{', '.join(RESOURCES)}, or a device such as {NVIDIA}"
        raise UserError(f"{at}: {key or 'an empty name'} is not a resource of nodes", hint)
    found = amount(text)
    if found is None:
        number, unit = text.rstrip(ascii_letters), text.lstrip("0123456789.").lower().removesuffix("b")
        units = [one for one in UNITS if one not in ("m", "u", "n") and one.lower() == unit and amount(number)]
        near = f"did you mean {number}{units[0]}?" if units else None
        raise UserError(f"{at}: {key}={text} is not an amount such as 500m, 2 or 3Gi", near)
    if found < 0:
        raise UserError(f"{at}: {key}={text} is below 0", f"did you mean {text.removeprefix('-')}?")
    if found > MOST:
        raise UserError(f"{at}: {key}={text} is more than Kubernetes counts to")
    return found


def _devices(node: Object) -> tuple[str, ...]:
    room = amounts((node.get("status") or {}).get("allocatable") or {})
    return tuple(f"{key}={plain(room[key])}" for key in sorted(room) if extended(key) and room[key])


def _size(node: Object) -> tuple[int, int]:
    """Return the processors and GiB of a node. Nodes that differ in them are not alike."""
    room = amounts((node.get("status") or {}).get("allocatable") or {})
    return round(room.get("cpu", Decimal(0))), round(room.get("memory", Decimal(0)) / 2**30)


def _least(nodes: list[Object]) -> str:
    """Return the processors, memory and disk that every one of the nodes has."""
    rooms = [amounts((node.get("status") or {}).get("allocatable") or {}) for node in nodes]
    cpu = min(room.get("cpu", Decimal(0)) for room in rooms)
    memory = min(room.get("memory", Decimal(0)) for room in rooms)
    disk = min(room.get("ephemeral-storage", Decimal(0)) for room in rooms)
    shown = f" ephemeral-storage={int(disk // MIB)}Mi" if disk else ""
    return f"cpu={int(cpu * 1000)}m memory={int(memory // MIB)}Mi{shown}"
