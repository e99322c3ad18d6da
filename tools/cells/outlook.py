"""The plan of a rendered job: `tools.plan` applied to its configuration and the machines that its pods take."""

import math
from collections.abc import Iterator
from typing import Any

from tools.cells import matrix
from tools.cells.instance_patch import wanted_types
from tools.cells.memory import room_on
from tools.cells.trainer_config import load_config
from tools.core import repo
from tools.core.output import short
from tools.facts.instances import HYPERPOD_PREFIX, INSTANCES, Instance
from tools.kube.json_patch import value_at
from tools.kube.manifests import Manifests, Object, name_of
from tools.kube.quantity import amount
from tools.kube.selectors import wants
from tools.kube.shapes import TEMPLATE, misshapes
from tools.plan.memory import Room
from tools.plan.outlook import Place, Plan, Run
from tools.workload import kinds
from tools.workload.workload import Workload, number
from training.config import Config

MEASURE = "run some steps of it and read `yard job metrics`, or plan a published model: yard new model, yard plan show"
COUNTS = ("replicas", "parallelism", "size")  # of pods, beside a pod template or above it


def of(manifests: Manifests) -> Plan | Place:
    """Return the plan of the job, or only its machines where its model is not known.

    Raises UserError and ConfigError if there is nothing to plan from.
    """
    found = kinds.find(manifests)
    if not any(one.trains or one.misshapen for one in found.workloads):
        others = [(one.item, one.reason) for one in found.unknown]
        others += [(one.item, f"no start of a training is seen in {one.title}") for one in found.workloads]
        if others:
            return _of_unknown(*others[0])
    for one in found.workloads:
        one.check_shape()
    job, config = kinds.job_of(manifests), load_config(manifests, repo.root())
    if config is not None:
        return of_job(job, config)
    specs = job.training_specs()
    why = _unclear(specs) or f"the model of a script of your own; {MEASURE}"
    return Place(job.name, machine_of(specs), job.nodes, _room(job), f"unknown: {why}")


def of_job(job: Workload, config: Config) -> Plan:
    """Return the plan of a job with this configuration. Raises UserError and ConfigError."""
    specs = job.training_specs()
    return Plan(Run.of(job.name, config, job.nodes, _room(job), machine_of(specs)), _unclear(specs))


def machine_of(specs: list[Object]) -> Instance | None:
    """Return the machine that pods ask for: an EC2 type, or a node of overlays/matrix.yaml. None: none, or several."""
    found = _machines(specs)
    return found[0] if len(found) == 1 else None


def _machines(specs: list[Object]) -> list[Instance]:
    names = {value for spec in specs for value in wanted_types(spec)}
    if names or not (repo.root() / matrix.MATRIX).is_file():
        return [one for one in INSTANCES.values() if names & set(one.node_names)]
    own = [one for one in matrix.read(repo.root()).machines.values() if one is not None and one.labels]
    return [one for one in own if specs and all(_asks(spec, dict(one.labels)) for spec in specs)]


def _asks(spec: Object, labels: dict[str, str]) -> bool:
    """Return whether a pod asks for nodes with these labels, and not for any node."""
    named, bare = ({"metadata": {"name": "", "labels": of}} for of in (labels, {}))
    return wants(spec, named) and not wants(spec, bare)


def _unclear(specs: list[Object]) -> str:
    """Say why the machine of pods is not known, or nothing."""
    found = _machines(specs)
    names = sorted({value.removeprefix(HYPERPOD_PREFIX) for spec in specs for value in wanted_types(spec)})
    if len(found) > 1:
        listed = ", ".join(one.name for one in found)
        return f"its pods may take {listed}, and the slowest sets the pace; plan the job on each type alone"
    if found or not names:
        return ""
    return (
        f"{short(', '.join(names))}, a type of machine that tools/facts/instances.yaml does not have; add it there with"
        " its card, or describe a node of your own: yard new hardware"
    )


def _room(job: Workload) -> Room:
    """Return the memory of each process; 0 bytes, unknown, where it depends on a machine that is not known."""
    limits = [_limits(one) for one in job.training_containers()]
    gpus = max(map(_gpus, limits), default=0)
    rooms = [room_on(one) for one in _machines(job.training_specs())]
    if rooms:
        room = min(rooms, key=lambda one: one.nbytes)
        return Room(gpus, room.nbytes, room.what) if gpus and room.what == "GPU" else room
    if gpus:
        return Room(gpus, 0, "GPU")
    processes = number(str(job.spec.get("nprocPerNode") or 1)) or 1
    memory = next((amount(of["memory"]) for of in limits if "memory" in of), None)
    return Room(processes, int(memory or 0) // processes, "process")


def _limits(container: Object) -> Object:
    limits: Any = (container.get("resources") or container.get("resourcesPerNode") or {}).get("limits")
    return limits if isinstance(limits, dict) else {}


def _gpus(limits: Object) -> int:
    return max((int(amount(limits[key]) or 0) for key in limits if str(key).endswith("/gpu")), default=0)


def _of_unknown(item: Object, reason: str) -> Place:
    """Return the machines of an object that is not modelled as a training: of its pods with the most GPUs."""
    pods = [(count, spec, max(map(_gpus, map(_limits, spec["containers"])), default=0)) for count, spec in _pods(item)]
    most = max((gpus for *_, gpus in pods), default=0)
    training = [(count, spec) for count, spec, gpus in pods if gpus == most]
    specs = [spec for _, spec in training]
    machine = machine_of(specs)
    room = Room(max(1, most), room_on(machine).nbytes if machine else 0, "GPU" if most else "process")
    why = f"{reason}; {_unclear(specs) or f'make it a cell (yard new script), or {MEASURE}'}"
    return Place(name_of(item), machine, max(1, sum(count for count, _ in training)), room, f"unknown: {why}")


def _pods(part: Any, count: int = 1) -> Iterator[tuple[int, Object]]:
    """Yield the pod specs in any object, each with the number of its pods."""
    if isinstance(part, list):
        for one in part:
            yield from _pods(one, count)
    if not isinstance(part, dict):
        return
    count *= math.prod(part[name] for name in COUNTS if type(part.get(name)) is int and 0 < part[name] < 100_000)
    if value_at(part, ("spec", "containers")) and not any(misshapes(part, TEMPLATE, "")):
        yield count, part["spec"]
        return
    for key, inner in part.items():
        if key != "leaderTemplate" or "workerTemplate" not in part:  # the size of a group counts its leader
            yield from _pods(inner, count)
