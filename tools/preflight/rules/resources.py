"""Rules on what a pod asks for: quantities, and whether the machine it selects can give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

from tools.core.verdict import Verdict, bad, good
from tools.facts.instances import NEURON, Instance
from tools.kube.quantity import amount, extended, plain, requests
from tools.preflight.rule import Place, rule
from tools.preflight.subject import ACCELERATORS, EFA, Subject, Template
from tools.preflight.template_resources import MIB, accelerators, asked, efa

SMALLEST_MEMORY = Decimal(2**20)
MOST_PROCESSORS = 1000
HUGEPAGES = "hugepages-2Mi"


@rule("quantities", "a unit left out asks for bytes, or for thousands of processors")
def quantities(subject: Subject) -> Iterator[Verdict]:
    """Amounts are Kubernetes quantities of a sensible size, and no request is above its limit.

    `memory: 32` is 32 bytes, `memory: 8m` a fraction of one, `8GB` is no quantity (8Gi or 8G), and `cpu:
    4000` is four thousand processors (4000m is four).
    """
    for template in subject.templates:
        for path, container in template.containers():
            resources = container.get("resources") or {}
            for kind in ("requests", "limits"):
                for name, value in (resources.get(kind) or {}).items():
                    place = Place(template.object, f"{path}.resources.{kind}.{name}", value)
                    fault = _quantity_fault(name, value)
                    yield bad(place, *fault) if fault else good(place, "a sensible amount")
            yield from _above_limit(template, path, resources)


def _quantity_fault(name: str, value: object) -> tuple[str, str] | None:
    number = amount(value)
    if number is None:
        return f"{value!r} is no quantity", "such as 500m, 2, 3Gi"
    if number < 0:
        return f"{name} is negative", "give an amount of 0 or more"
    if name == "memory" and 0 < number < SMALLEST_MEMORY:
        return f"memory {value} is {plain(number)} bytes", f"a unit is missing: {value}Gi?"
    if name == "cpu" and number > MOST_PROCESSORS:
        return f"cpu {value} is {plain(number)} processors", f"thousandths have an m: {value}m"
    return None


def _above_limit(template: Template, path: str, resources: dict[str, dict[str, object]]) -> Iterator[Verdict]:
    limits = resources.get("limits") or {}
    for name, value in (resources.get("requests") or {}).items():
        low, high = amount(value), amount(limits.get(name))
        if name in limits and low is not None and high is not None and low > high:
            place = Place(template.object, f"{path}.resources.requests.{name}", value)
            yield bad(
                place, f"{name}: the request {value} is above the limit {limits[name]}", "raise the limit"
            )


@rule("devices-whole", "devices are given whole, and to one pod")
def devices_whole(subject: Subject) -> Iterator[Verdict]:
    """GPUs, Neuron devices, EFA interfaces and huge pages: whole numbers, a limit, and the request equal to
    it.

    The CRD takes "0.5"; the API server refuses each pod of it, and the job stands at Created. Huge pages also
    need a request of memory or processors beside them.
    """
    for template in subject.templates:
        for path, container in template.containers():
            resources = container.get("resources") or {}
            limits, wanted = resources.get("limits") or {}, resources.get("requests") or {}
            for name in dict.fromkeys([*limits, *wanted]):
                if not extended(name):
                    continue
                place = Place(
                    template.object, f"{path}.resources", f"{name}: {limits.get(name, wanted.get(name))}"
                )
                fault = _device_fault(name, limits, wanted)
                yield bad(place, *fault) if fault else good(place, "a whole number, and a limit")


def _device_fault(name: str, limits: dict[str, object], wanted: dict[str, object]) -> tuple[str, str] | None:
    numbers = [number for given in (limits, wanted) if (number := amount(given.get(name))) is not None]
    if any(number != number.to_integral_value() for number in numbers):
        return f"{name} is not a whole number", "a device cannot be shared in this way; ask for 1"
    if name not in limits:
        return f"{name} has a request and no limit", "write it under limits"
    if len(set(numbers)) > 1:
        return f"{name}: request {wanted.get(name)}, limit {limits[name]}", "the two must be equal"
    if name.startswith("hugepages-") and not {"cpu", "memory"} & {*limits, *wanted}:
        return f"{name} without memory or cpu", "ask for memory or cpu too"
    return None


Capacity = Callable[[Template, Instance], Decimal]


def _fits(subject: Subject, resource: str, unit: str, capacity: Capacity) -> Iterator[Verdict]:
    """Judge each pod that asks for `resource` against the instance types that it selects.

    FAIL where none of them can give it. Where a type is not in the table, nothing is said here: the rule
    `instance-types` says so once.
    """
    for template in subject.templates:
        need, selected = asked(template, resource), template.selected
        if need <= 0 or not selected.known:
            continue
        offers = {one.name: capacity(template, one) for one in selected.known}
        listed = ", ".join(f"{name} has {_shown(offer, unit)}" for name, offer in offers.items())
        place = Place(template.object, f"{template.spec_path} {resource}", _shown(need, unit))
        if any(need <= offer for offer in offers.values()):
            yield good(place, f"fits: {listed}")
        elif not selected.unknown:
            yield bad(
                place,
                f"{resource} {_shown(need, unit)} a pod, but {listed}",
                f"ask for no more than {_shown(max(offers.values()), unit)}, or select a larger type",
            )


def _shown(number: Decimal, unit: str) -> str:
    if unit == "Mi":
        return f"{plain((number / MIB).quantize(Decimal(1)))}Mi"
    return f"{plain(number * 1000)}m" if unit == "m" else plain(number)


@rule(
    "cpu-fits",
    "a pod that asks for more than a node can give stays Pending, beside the node that is paid for",
)
def cpu_fits(subject: Subject) -> Iterator[Verdict]:
    """Processors asked for are within what the selected instance can allocate.

    Allocatable is less than the machine has: kubelet and the system keep a part. Numbers: tools/facts.
    """
    yield from _fits(subject, "cpu", "m", lambda _, one: Decimal(one.allocatable_cpu_m) / 1000)


@rule("memory-fits", "the same for memory, of which the system and huge pages keep a part")
def memory_fits(subject: Subject) -> Iterator[Verdict]:
    """Memory asked for is within what the selected instance can allocate.

    Where the pod asks for EFA or huge pages, the driver has set 2 MiB pages aside, and the kubelet has taken
    them off.
    """

    def capacity(template: Template, one: Instance) -> Decimal:
        driver = asked(template, HUGEPAGES) > 0 or efa(template) > 0
        return (Decimal(one.allocatable_memory_mib) - (one.hugepages_2mi_mib if driver else 0)) * MIB

    yield from _fits(subject, "memory", "Mi", capacity)


@rule("hugepages-fit", "huge pages exist only where the EFA driver has set them aside")
def hugepages_fit(subject: Subject) -> Iterator[Verdict]:
    """Huge pages of 2 MiB asked for are there on the selected instance."""
    yield from _fits(subject, HUGEPAGES, "Mi", lambda _, one: Decimal(one.hugepages_2mi_mib) * MIB)


@rule("efa-fits", "an interface that the machine does not have is never scheduled")
def efa_fits(subject: Subject) -> Iterator[Verdict]:
    """EFA interfaces asked for are there on the selected instance.

    g5.xlarge to g5.4xlarge have none, g5.8xlarge and larger have one, p5.48xlarge 32 and p5en.48xlarge 16.
    Many guides ask for one on machines that have none.
    """
    yield from _fits(subject, EFA, "", lambda _, one: Decimal(one.efa))


@rule("devices-fit", "more devices than the machine has, or devices of another kind")
def devices_fit(subject: Subject) -> Iterator[Verdict]:
    """Accelerators asked for are there on the selected instance, of the same kind."""
    for resource in ACCELERATORS:
        yield from _fits(subject, resource, "", lambda _, one, name=resource: _devices(one, name))  # type: ignore[misc]


def _devices(one: Instance, resource: str) -> Decimal:
    if one.device_resource == resource:
        return Decimal(one.accelerators)
    if one.device_resource == NEURON and resource == "aws.amazon.com/neuroncore":
        return Decimal(one.accelerators * one.cores_per_accelerator)
    if one.device_resource == NEURON and resource == "aws.amazon.com/neurondevice":
        return Decimal(one.accelerators)
    return Decimal(0)


@rule("efa-even", "a rank without EFA among ranks with it cannot talk to them")
def efa_even(subject: Subject) -> Iterator[Verdict]:
    """All pods of a job ask for the same number of EFA interfaces.

    One replica type with EFA and one without choose different transports and do not meet.
    """
    for job in subject.jobs:
        counts = {template.role: efa(template) for template in job.templates}
        if len(counts) < 2 or not any(counts.values()):
            continue
        said = ", ".join(f"{role} {plain(count)}" for role, count in counts.items())
        place = Place(job.object, "spec.pytorchReplicaSpecs", said)
        if len(set(counts.values())) == 1:
            yield good(place, "all pods have the same number of interfaces")
        else:
            yield bad(
                place, f"EFA interfaces differ between the job's pods: {said}", "ask for the same in each"
            )


@rule("efa-all-or-none", "a part of the interfaces is a part of the network that is paid for")
def efa_all_or_none(subject: Subject) -> Iterator[Verdict]:
    """A job of several pods that takes all accelerators of its nodes takes all EFA interfaces, or none.

    The rest cannot be used by anybody: the node has no accelerator left for another pod. None is a choice
    (TCP, for a trial).
    """
    for template in subject.training():
        count, selected = efa(template), template.selected
        name, devices = accelerators(template)
        if template.nodes < 2 or not name or selected.unknown or count != count.to_integral_value():
            continue
        whole = [one for one in selected.known if one.efa > 0 and _devices(one, name) == devices]
        if not whole:
            continue
        place = Place(template.object, f"{template.spec_path} {EFA}", plain(count))
        if count == 0 or any(count >= one.efa for one in whole):
            yield good(place, "all interfaces of the node, or none")
        else:
            listed = ", ".join(f"{one.name} has {one.efa}" for one in whole)
            yield bad(
                place, f"{plain(count)} EFA interfaces of a node used whole: {listed}", "ask for all of them"
            )


@rule("processes", "more processes than devices share one, fewer leave devices idle")
def processes(subject: Subject) -> Iterator[Verdict]:
    """torchrun starts one process for each accelerator that the pod has (for each core of a Neuron device).

    Eight processes on one GPU end in `Duplicate GPU detected`; one process on eight leaves seven idle.
    """
    for job in subject.jobs:
        if job.analysis is None or not job.analysis.nodes:
            continue
        for template in job.templates:
            node = next(
                (one for one in job.analysis.nodes if one.pod.replica_type == template.role.lower()), None
            )
            devices = _places_for_processes(template)
            if node is None or node.processes is None or devices is None or node.launch.torchrun is None:
                continue
            place = Place(job.object, "spec.nprocPerNode", node.processes)
            if node.processes == devices:
                yield good(place, f"one process for each of {plain(devices)}")
            else:
                yield bad(
                    place,
                    f"{node.processes} processes a pod for {plain(devices)} accelerators",
                    f'nprocPerNode: "{plain(devices)}"',
                )


def _places_for_processes(template: Template) -> Decimal | None:
    """Return how many processes the pod's accelerators serve, or None where that is not known."""
    name, count = accelerators(template)
    if not name or name == "aws.amazon.com/neuroncore" or name == "nvidia.com/gpu":
        return count if name else None
    cores = {one.cores_per_accelerator for one in template.selected.known}
    return count * cores.pop() if len(cores) == 1 and not template.selected.unknown else None


@rule("shm", "64 MiB of shared memory is too little for several ranks, and a disk is too slow")
def shm(subject: Subject) -> Iterator[Verdict]:
    """A training container with several accelerators mounts an emptyDir of medium Memory at /dev/shm.

    The container runtime's default is 64 MiB; NCCL and the data loader's workers then end with `Bus error` or
    `No space left on device`. It counts against the memory limit, so sizeLimit stays below that.
    """
    for template in subject.training():
        path, container = template.trainer()
        mounts = {
            mount["mountPath"].rstrip("/"): mount["name"] for mount in container.get("volumeMounts") or []
        }
        volume = template.volumes().get(mounts.get("/dev/shm", ""))
        if volume is None:
            if "/dev/shm" not in mounts and accelerators(template)[1] >= 2:
                place = Place(template.object, f"{path}.volumeMounts", "nothing at /dev/shm")
                yield bad(place, "several accelerators and no shared memory", "emptyDir: {medium: Memory}")
            continue
        if volume.get("emptyDir") is None:
            continue
        empty = volume["emptyDir"]
        place = Place(template.object, f"{template.spec_path}.volumes[{volume['name']}].emptyDir", empty)
        limit = amount((container.get("resources") or {}).get("limits", {}).get("memory", ""))
        size = amount(empty.get("sizeLimit", ""))
        if empty.get("medium") != "Memory":
            yield bad(place, "/dev/shm lies on a disk", "medium: Memory")
        elif limit is not None and size is not None and size > limit:
            memory = requests(container).get("memory")
            yield bad(place, f"sizeLimit is above the container's memory ({memory})", "lower it")
        else:
            yield good(place, "shared memory, counted against the memory limit")
