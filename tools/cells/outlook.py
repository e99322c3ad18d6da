"""The plan of a rendered job: `tools.plan` applied to its configuration and the machines that its pods take."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tools.cells import matrix
from tools.cells.instance_patch import wanted_types
from tools.cells.knobs import DEVICE, NEURON_CORE
from tools.cells.memory import room_on
from tools.cells.trainer_config import load_config
from tools.core import UserError, repo
from tools.core.nested import mappings
from tools.core.output import short
from tools.facts.instances import HYPERPOD_PREFIX, INSTANCES, NEURON, Instance
from tools.kube.json_patch import value_at
from tools.kube.manifests import MOST_PODS, Manifests, Object, name_of
from tools.kube.quantity import amount, requests
from tools.kube.selectors import wants
from tools.kube.shapes import TEMPLATE, misshapes
from tools.plan.memory import CARDS, Room
from tools.plan.outlook import Place, Plan, Run
from tools.workload import kinds
from tools.workload.workload import Workload, number
from training.config import Config

MEASURE = "run some steps of it and read `yard job metrics`, or plan a published model: yard new model, yard plan show"
COUNTS = ("replicas", "parallelism", "size")  # of pods, beside a pod template or above it
NUMBERS = (*COUNTS, "completions", "minReplicas", "maxReplicas", "numNodes")
PART = re.compile(r"/gpu\.|/mig-")  # of a card


@dataclass(frozen=True)
class _Pods:
    """Equal pods of a training: their number, their spec, and the devices that each asks for."""

    count: int
    spec: Object
    resource: str = ""
    devices: int = 0

    @classmethod
    def of(cls, count: int, spec: Object, containers: Iterable[Object]) -> "_Pods":
        """Return pods with the devices of the container that asks for the most. Raises UserError."""
        devices, resource = max((_devices(one) for one in containers), default=(0, ""))
        return cls(count, spec, resource, devices)


def of(manifests: Manifests) -> Plan | Place:
    """Return the plan of the job, or only its machines where its model is not known.

    Raises UserError and ConfigError if there is nothing to plan from.
    """
    found = kinds.find(manifests)
    if not any(one.trains or one.misshapen for one in found.workloads):
        others = [(one.item, one.reason) for one in found.unknown]
        others += [(one.item, f"no start of a training is seen in {one.title}") for one in found.workloads]
        if others:
            return _of_unknown(manifests.source, *others[0])
    for one in found.workloads:
        one.check_shape()
    job, config = kinds.job_of(manifests), load_config(manifests, repo.root())
    _check_numbers(f"{manifests.source}: {job.title}: {job.prefix}", job.item, _pods_of(job))
    if config is not None:
        return of_job(job, config)
    return _place(job.name, _pods_of(job), f"the model of a script of your own; {MEASURE}")


def of_job(job: Workload, config: Config, ranks: int = 0) -> Plan:
    """Return the plan of a job, of an elastic one with the `ranks` that it has now. UserError and ConfigError."""
    pods = _pods_of(job)
    processes = number(str(job.spec.get("nprocPerNode") or job.section("trainer").get("numProcPerNode")))
    place = _place(job.name, pods, "")
    there, count = place.room, processes or place.room.processes
    # Processes of a pod without cards, and those that share a card, have a part of its memory each.
    room = replace(there, processes=count, nbytes=min(there.nbytes, there.nbytes * there.processes // count))
    nodes = (config.nodes and ranks // count) or place.nodes
    run = Run.of(job.name, config, nodes, room, place.instance)
    why = place.why_unknown
    if not why and there.what in CARDS and count > there.processes:
        why = f"unknown: {count} processes share {there.processes} {there.what}s, whose speed was not measured"
    return Plan(replace(run, machine=None) if why else run, why)


def _pods_of(job: Workload) -> list[_Pods]:
    """Return the pods of a training; of one whose pods are not in the manifest, what it asks for them."""
    found = [
        _Pods.of(role.most, role.template["spec"], (
            one for one in role.template["spec"]["containers"] if one.get("name") == job.container_of(role.template)
        ))
        for role in job.roles if role.trains
    ]  # fmt: skip
    asked = [{"resources": one.get("resourcesPerNode") or {}} for one in job.training_containers()]
    return found or [_Pods.of(job.nodes, {}, asked)]


def _check_numbers(where: str, item: Object, pods: list[_Pods]) -> None:
    """Raise UserError for a field that is not a number of pods, and for a job that has none of the pods to plan."""
    found = list(_numbers(item))
    for path, value in found:
        if type(value) is not int or not path.endswith(".numNodes") <= value <= MOST_PODS:
            what = f"{where}{path}: {short(repr(value))} is not a number of pods"
            raise UserError(what, f"a number from 1 to {MOST_PODS:,}")
    if not any(one.count for one in pods):
        path = next((path for path, value in found if value == 0), "spec")
        raise UserError(f"{where}{path}: 0 leaves no pod to plan", "1 or more")


def _numbers(item: Object) -> Iterator[tuple[str, Any]]:
    """Yield the fields that say how many pods there are, with their paths; a size may be one of something else."""
    for path, part in mappings(item.get("spec"), "spec"):
        for name in NUMBERS:
            value = part.get(name)
            of_pods = name != "size" or (type(value) is int and any(True for _ in _pods(part)))
            if of_pods and isinstance(value, bool | int | float | str):
                yield f"{path}.{name}", value


def _devices(container: Object) -> tuple[int, str]:
    """Return how many devices a container asks for, and as which resource. Raises UserError for a part of one."""
    found = [(0, "")]
    for name, value in requests(container).items():
        if DEVICE.search(str(name)):
            count = amount(value)
            if count is None or count < 0 or count % 1:
                raise UserError(f"{name}: {short(repr(value))} is not a number of devices", "whole devices, such as 8")
            found.append((int(count), str(name)))
    return max(found)


def _place(name: str, pods: list[_Pods], why: str) -> Place:
    """Return the machines of pods. `why` says what is not known besides them."""
    specs = [one.spec for one in pods]
    machines, most = _machines(specs), max(pods, key=lambda one: one.devices)
    for machine in machines:
        _check_devices(most, machine)
    why = _unclear(pods, machines, most) or why
    named = machines[0] if len(machines) == 1 else None
    return Place(name, named, sum(one.count for one in pods), _room(most, machines), why and f"unknown: {why}")


def _check_devices(pods: _Pods, machine: Instance) -> None:
    """Raise UserError if no machine of this type can hold one of the pods."""
    cores = machine.cores_per_accelerator if pods.resource == NEURON_CORE else 1
    whole = NEURON if pods.resource == NEURON_CORE else pods.resource
    there = machine.accelerators * cores if whole == machine.device_resource else 0
    if pods.devices > there and not PART.search(pods.resource):
        hint = f"at most {there}, on more pods" if there else "choose a machine that has them"
        raise UserError(
            f"a pod asks for {pods.devices:,} {pods.resource}, and {machine.name} has {there}", hint, code=1
        )


def _machines(specs: list[Object]) -> list[Instance]:
    """Return the machines that pods ask for: EC2 types, or nodes of overlays/matrix.yaml."""
    names = {value for spec in specs for value in wanted_types(spec)}
    if names or not (repo.root() / matrix.MATRIX).is_file():
        return [one for one in INSTANCES.values() if names & set(one.node_names)]
    if not specs or any(_takes(spec, {}) for spec in specs):
        return []  # the pods take any node, so the matrix is not read: that is slow
    own = [one for one in matrix.read(repo.root()).machines.values() if one is not None and one.labels]
    return [one for one in own if all(_takes(spec, dict(one.labels)) for spec in specs)]


def _takes(spec: Object, labels: dict[str, str]) -> bool:
    """Return whether a pod may run on a node with these labels."""
    return wants(spec, {"metadata": {"name": "", "labels": labels}})


def _unclear(pods: list[_Pods], machines: list[Instance], most: _Pods) -> str:
    """Say why the machine or the card of pods is not known, or nothing."""
    if not all(one.spec for one in pods):
        return "its pods come from a runtime that is not in the file"
    names = sorted({value.removeprefix(HYPERPOD_PREFIX) for one in pods for value in wanted_types(one.spec)})
    if len(machines) > 1:
        listed = ", ".join(one.name for one in machines)
        return f"its pods may take {listed}, and the slowest sets the pace; plan the job on each type alone"
    if len(numbers := sorted({one.devices for one in pods})) > 1:
        return f"its pods ask for {' and '.join(map(str, numbers))} devices, and equal pods are planned"
    if PART.search(most.resource):
        return f"{short(most.resource)} is a part of a card, whose speed was not measured; ask for whole cards"
    if machines and machines[0].accelerators and not (most.devices or _claims(most)):
        return f"its pods ask for no {machines[0].accelerator} of {machines[0].name}"
    if machines or not names:
        return ""
    return (
        f"{short(', '.join(names))}, a type of machine that tools/facts/instances.yaml does not have; add it there with"
        " its card, or describe a node of your own: yard new hardware"
    )


def _claims(pods: _Pods) -> bool:
    """Return whether the pods get devices that their resources do not name."""
    return bool(pods.spec.get("resourceClaims"))


def _room(pods: _Pods, machines: list[Instance]) -> Room:
    """Return the memory of each process; 0 bytes, unknown, where it depends on a machine that is not known."""
    if pods.devices:
        room = min(map(room_on, machines), key=lambda one: one.nbytes, default=Room(1, 0, "GPU"))
        cores = machines[0].cores_per_accelerator if machines and pods.resource == NEURON else 1
        return Room(pods.devices * cores, 0 if PART.search(pods.resource) else room.nbytes, room.what)
    if machines and (_claims(pods) or not machines[0].accelerators):
        return min(map(room_on, machines), key=lambda one: one.nbytes)
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pods.spec.get("containers") or []]
    memory = next((amount(of["memory"]) for of in limits if "memory" in of), None)
    return Room(1, int(memory or 0), "process")


def _of_unknown(source: str, item: Object, reason: str) -> Place:
    """Return the machines of an object that is not modelled as a training: of its pods with the most devices."""
    pods = [_Pods.of(count, spec, spec["containers"]) for count, spec in _pods(item)]
    pods = [one for one in pods if one.devices] or pods or [_Pods(1, {"containers": []})]
    _check_numbers(f"{source}: {item['kind']}/{name_of(item)}: ", item, pods)
    most = max(one.devices for one in pods if one.count)
    training = [one for one in pods if one.count and one.devices == most]
    place = _place(name_of(item), training, "")
    why = place.why_unknown.removeprefix("unknown: ") or f"make it a cell (yard new script), or {MEASURE}"
    others = sum(one.count for one in pods if 0 < one.devices < most)
    beside = f"; {others} more with fewer devices are not counted" if others else ""
    return replace(place, why_unknown=f"unknown: {reason}; {why}{beside}")


def _pods(part: Any, count: int = 1) -> Iterator[tuple[int, Object]]:
    """Yield the pod specs in any object, each with the number of its pods."""
    if isinstance(part, list):
        for one in part:
            yield from _pods(one, count)
    if not isinstance(part, dict):
        return
    count *= math.prod(part[name] for name in COUNTS if type(part.get(name)) is int)
    if value_at(part, ("spec", "containers")) and not any(misshapes(part, TEMPLATE, "")):
        yield count, part["spec"]
        return
    for key, inner in part.items():
        if key != "leaderTemplate" or "workerTemplate" not in part:  # the size of a group counts its leader
            yield from _pods(inner, count)
