"""EC2 instance types: hardware, allocatable resources and prices, from instances.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.core.errors import UserError
from tools.core.repo import did_you_mean
from tools.core.tables import load

HYPERPOD_PREFIX = "ml."
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
    allocatable_memory_mib: int  # huge pages are not subtracted
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

    @property
    def node_names(self) -> tuple[str, str]:
        """Return the values of the label `node.kubernetes.io/instance-type` on EKS and on HyperPod."""
        return self.name, HYPERPOD_PREFIX + self.name

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


def _instance(name: str, row: dict[str, Any]) -> Instance:
    accelerator = row.get("accelerator")
    cores = NEURON_CORES.get(str(accelerator))
    resource = None if accelerator is None else NVIDIA if cores is None else NEURON
    absent = {"accelerator": None, "accelerators": 0, "accelerator_memory_mib": 0, "hugepages_2mi_mib": 0}
    values = absent | {"architecture": "amd64"} | row
    return Instance(name=name, device_resource=resource, cores_per_accelerator=cores or 1, **values)


_ROWS: dict[str, dict[str, Any]] = load("facts/instances.yaml")
INSTANCES: Mapping[str, Instance] = {name: _instance(name, row) for name, row in _ROWS.items()}
