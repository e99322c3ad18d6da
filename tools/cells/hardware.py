"""The hardware of overlays/matrix.yaml: a device, an image, and the machine that cells take by default.

An entry names an EC2 instance type, or describes a node of your own. A hardware without an entry is a
Component that is written by hand: its pods take no machine whole.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from tools import __version__
from tools.core.errors import UserError
from tools.core.tables import load
from tools.facts.instances import NEURON, NEURON_CORES, NVIDIA, Instance, instance
from tools.kube.quantity import quantity

FILES = ("kustomization.yaml", "hardware.yaml")
DEVICES = {None: "cpu", NVIDIA: "cuda", NEURON: "neuron"}  # resource name -> the trainer's device type
MIB = 2**20
_TEXTS: dict[str, str] = load("cells/texts.yaml")


def _amount(value: Any) -> float:
    """Return a Kubernetes quantity as a number."""
    try:
        return float(quantity(str(value)))
    except UserError as problem:
        raise ValueError(problem.message) from None


Amount = Annotated[float, BeforeValidator(_amount)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,314}[A-Za-z0-9])?$")]


class OwnNode(BaseModel):
    """A node that is not an EC2 instance type. Amounts are what the kubelet leaves to pods."""

    model_config = ConfigDict(extra="forbid")
    labels: dict[Name, Name] = Field(min_length=1)  # the nodes have all of them
    cpus: Amount = Field(ge=1)  # allocatable processors
    memory: Amount = Field(ge=9 * 2**28)  # allocatable bytes without huge pages; 1 GiB must be left for a pod
    devices: dict[Name, Annotated[int, Field(ge=1, le=1024)]] = Field({}, max_length=1)  # resource name: number
    device: Name | None = None  # the card's name, such as H100
    device_memory: Amount = 0  # bytes of one device
    efa: int = Field(0, ge=0, le=64)
    hugepages: Amount = 0  # allocatable bytes in pages of 2 MiB
    network_mbps: int = Field(0, ge=0)  # that leave the node; 0: unknown
    price_usd_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)  # None: unknown

    def machine(self, name: str) -> Instance:
        """Return the node as a machine. Raises UserError for devices that no image of the trainer knows."""
        resource, count = next(iter(self.devices.items()), (None, 0))
        if resource not in DEVICES:
            known = ", ".join(str(one) for one in DEVICES if one)
            raise UserError(f"devices: the trainer has no image for {resource}", f"known: {known}")
        if resource and (self.device is None or self.device_memory < MIB):
            raise UserError("devices: device and device_memory are needed too", "device: H100, device_memory: 80Gi")
        cores = NEURON_CORES.get(str(self.device), 2) if resource == NEURON else 1
        return Instance(
            name=name,
            vcpus=int(self.cpus),
            memory_mib=int(self.memory / MIB),
            allocatable_cpu_m=int(self.cpus * 1000),
            allocatable_memory_mib=int((self.memory + self.hugepages) / MIB),
            accelerator=self.device if resource else None,
            accelerators=count,
            accelerator_memory_mib=int(self.device_memory / MIB),
            device_resource=resource,
            cores_per_accelerator=cores,
            efa=self.efa,
            hugepages_2mi_mib=int(self.hugepages / MIB),
            nvme_gb=0,
            network_mbps=self.network_mbps,
            price_usd_per_hour=self.price_usd_per_hour,
            architecture="amd64",
            labels=tuple(self.labels.items()),
        )


def machine(name: str, entry: Mapping[str, Any]) -> Instance:
    """Return the machine of an entry of the matrix. Raises UserError that names the key."""
    if len(entry) != 1 or not {"instance", "node"} & set(entry):
        raise UserError("one key is needed", "instance: TYPE, or node: {...}")
    if "instance" in entry:
        try:
            return instance(str(entry["instance"]))
        except UserError as problem:
            raise UserError(f"instance: {problem.message}", problem.hint) from None
    try:
        return OwnNode.model_validate(entry["node"]).machine(name)
    except ValidationError as problem:
        first = problem.errors()[0]
        keys = [str(one) for one in first["loc"] if one != "[key]"]
        raise UserError(f"{'.'.join(('node', *keys))}: {_said(first)}") from None
    except UserError as problem:
        raise UserError(f"node.{problem.message}", problem.hint) from None


def _said(error: ErrorDetails) -> str:
    """Return what is wrong with a value of a node, in words."""
    value, least = error["input"], error.get("ctx", {}).get("ge", 0)
    known = {
        "greater_than_equal": f"{_size(value)} is less than {_size(least)}",
        "int_parsing": f"{value} is not a whole number",
        "string_pattern_mismatch": f"{value!r} is not a name of letters, digits and the characters . _ / -",
    }
    return known.get(error["type"], error["msg"].removeprefix("Value error, "))


def _size(value: Any) -> str:
    return f"{value / 2**30:.3g}Gi" if isinstance(value, float) and value >= 2**20 else f"{value}"


def files(name: str, found: Instance) -> dict[str, str]:
    """Return the files of a hardware Component by name."""
    row: dict[str, str] = load("cells/hardware.yaml")[DEVICES[found.device_resource]]
    if found.accelerator:
        device = f"{found.accelerator} of {found.accelerator_memory_mib / 1024:.0f} GiB"
    else:
        device = "the processors"
    about = f"The hardware {name}: {device}. A pod takes one whole {found.name} unless the matrix names another"
    text = _TEXTS["hardware"].format(
        about=about, image=row["image"], version=__version__, patches=row.get("patches", "")
    )
    config = _TEXTS["hardware config"].format(device=found.accelerator or "processors", config=row["config"])
    return {"kustomization.yaml": text, "hardware.yaml": config}
