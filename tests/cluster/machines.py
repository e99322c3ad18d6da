"""Nodes that look like EC2's machines, with what tools/facts says of them; kwok keeps them alive."""

from __future__ import annotations

from tests.cluster.api import Object
from tools.facts.instances import EFA, Instance
from tools.kube.selectors import ZONE

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
MIB = 2**20


def fake_node(kind: Instance, name: str, labels: dict[str, str] | None = None) -> Object:
    """Return a node of an instance type, with its pods' capacity, for kwok to keep alive."""
    memory = (kind.allocatable_memory_mib - kind.hugepages_2mi_mib) * MIB
    room = {"cpu": f"{kind.allocatable_cpu_m}m", "memory": str(memory), "pods": "110"}
    room |= {"ephemeral-storage": "100Gi", "hugepages-2Mi": str(kind.hugepages_2mi_mib * MIB)}
    room |= {kind.device_resource: str(kind.accelerators)} if kind.device_resource else {}
    room |= {EFA: str(kind.efa)} if kind.efa else {}
    known = {INSTANCE_TYPE: kind.name, "kubernetes.io/arch": kind.architecture, "kubernetes.io/os": "linux"}
    known[ZONE] = "us-west-2a"
    taints = [{"key": kind.device_resource, "effect": "NoSchedule"}] if kind.device_resource else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": known | {"kubernetes.io/hostname": name, "trainyard-test": "kwok"} | (labels or {}),
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": taints},
        "status": {"allocatable": room, "capacity": room},
    }
