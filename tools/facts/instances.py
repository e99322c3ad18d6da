"""EC2 instance types (instances.yaml) and machines of your own: hardware, allocatable resources, prices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.core import UserError, did_you_mean, tables

HYPERPOD_PREFIX = "ml."
INSTANCE_LABEL = "node.kubernetes.io/instance-type"
NVIDIA, NEURON, EFA = "nvidia.com/gpu", "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"
# Processes for each Neuron device: its cores, as the Neuron runtime counts them by default.
NEURON_CORES = {"Trainium": 2, "Trainium2": 4}


@dataclass(frozen=True)
class Instance:
    """One instance type. Memory is in MiB, CPU in thousandths of a processor (m)."""

    name: str
    vcpus: int
    memory_mib: int
    allocatable_cpu_m: int
    allocatable_memory_mib: int  # of an instance type, huge pages are not subtracted
    accelerator: str | None  # the card's name, such as "A10G"
    accelerators: int
    accelerator_memory_mib: int  # of one accelerator
    device_resource: str | None  # the resource name of the device plugin
    cores_per_accelerator: int  # processes for each accelerator
    efa: int  # largest number of interfaces
    hugepages_2mi_mib: int  # reserved by the EFA driver, else 0
    nvme_gb: int
    network_mbps: int
    price_usd_per_hour: float | None  # None: unknown
    architecture: str  # amd64 | arm64
    labels: tuple[tuple[str, str], ...] = ()  # of the nodes, if the machine is not an EC2 instance type

    @property
    def node_names(self) -> tuple[str, str]:
        """Return the values of the label `node.kubernetes.io/instance-type` on EKS and on HyperPod."""
        return self.name, HYPERPOD_PREFIX + self.name

    @property
    def node_labels(self) -> dict[str, list[str]]:
        """Return the labels that the nodes have, each with its possible values."""
        return {name: [value] for name, value in self.labels} or {INSTANCE_LABEL: list(self.node_names)}

    @property
    def processes(self) -> int:
        """Return the trainer's processes per node: one for each accelerator core, at least one."""
        return max(1, self.accelerators * self.cores_per_accelerator)


def instance(name: str) -> Instance:
    """Return the instance type `name`, with or without HyperPod's prefix `ml.`. Raises UserError."""
    bare = name.removeprefix(HYPERPOD_PREFIX)
    if bare not in INSTANCES:
        hint = did_you_mean(bare, INSTANCES) or f"known: {', '.join(INSTANCES)}"
        raise UserError(f"unknown instance type {name}", hint)
    return INSTANCES[bare]


def allocatable_cpu_m(vcpus: int) -> int:
    """Return what the kubelet of an EKS node leaves to pods, in thousandths of a processor.

    It reserves 6 % of the first processor, 1 % of the second, 0.5 % of the next two, 0.25 % of all others.
    Source: EKS's AMI and aws/karpenter-provider-aws at 1d927085 (2026-08-21), instancetype/types.go.
    """
    shares = [60, 10, 5, 5, *[2.5] * max(0, vcpus - 4)][:vcpus]
    return math.floor(vcpus * 1000 - sum(shares))


def allocatable_memory_mib(memory_mib: int, pods: int) -> int:
    """Return what the kubelet of an EKS node leaves to pods, in MiB. Huge pages are not subtracted.

    It reserves 255 MiB and 11 MiB a pod, and evicts pods below 100 MiB. Karpenter assumes that the hypervisor
    takes 7.5 % of the memory. A node has more, or the same (the source as above).
    """
    return math.floor(memory_mib * 0.925) - 255 - 11 * pods - 100


def _instance(name: str, row: dict[str, Any]) -> Instance:
    accelerator = row.get("accelerator")
    cores = NEURON_CORES.get(str(accelerator))
    resource = None if accelerator is None else NVIDIA if cores is None else NEURON
    absent = {"accelerator": None, "accelerators": 0, "accelerator_memory_mib": 0, "hugepages_2mi_mib": 0}
    values = absent | {"architecture": "amd64"} | row
    memory = allocatable_memory_mib(row["memory_mib"], values.pop("pods"))
    values |= {"allocatable_cpu_m": allocatable_cpu_m(row["vcpus"]), "allocatable_memory_mib": memory}
    return Instance(name=name, device_resource=resource, cores_per_accelerator=cores or 1, **values)


_ROWS: dict[str, dict[str, Any]] = tables.load("facts/instances.yaml")
INSTANCES: Mapping[str, Instance] = {name: _instance(name, row) for name, row in _ROWS.items()}
