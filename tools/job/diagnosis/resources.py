"""How the diagnosis prints resources, amounts and objects: GPUs for nvidia.com/gpu, memory in GiB."""

from decimal import Decimal

from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.manifests import Object
from tools.kube.quantity import plain, pod_requests

NAMES = {NVIDIA: "GPUs", EFA: "EFA interfaces", NEURON: "Neuron devices", "cpu": "CPUs", "memory": "memory"}
SHOWN = 4  # names of objects
# Resource names of accelerators and of their parts: MIG slices, shared GPUs, Neuron cores.
MIG = "nvidia.com/mig-"
ACCELERATORS = (NVIDIA, MIG, NEURON, "amd.com/gpu", "habana.ai/")


def name_of(resource: str) -> str:
    if resource.startswith(MIG):
        return f"MIG slices {resource.removeprefix(MIG)}"
    return NAMES.get(resource, resource)


def formatted(resource: str, value: Decimal) -> str:
    """Return an amount for people: memory, disk and huge pages in GiB."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{value / 2**30:.1f} GiB"
    return plain(round(value, 2))


def is_accelerator(resource: str) -> bool:
    return resource.startswith(ACCELERATORS)


def rank(resource: str) -> tuple[int, str]:
    """Return a sort key that puts accelerators first, then EFA interfaces, then the rest."""
    if is_accelerator(resource):
        return 0, resource
    return (1 if resource == EFA else 2), resource


def accelerators(spec: Object) -> int:
    """Return how many accelerators a pod of this spec requests."""
    return int(sum(value for name, value in pod_requests(spec).items() if is_accelerator(name)))


def existing(snapshot: Snapshot, kind: str) -> str:
    """Return the names of the first objects of a kind, `none` without any."""
    return ", ".join(item["metadata"]["name"] for item in snapshot.of(kind)[:SHOWN]) or "none"
