"""The plan of a rendered job: `tools.plan` applied to its configuration and the machines that its pods take."""

from tools.cells.knobs import machine
from tools.cells.memory import room_on
from tools.cells.trainer_config import load_config
from tools.core import UserError, repo
from tools.facts.instances import NEURON, NVIDIA
from tools.kube.manifests import Manifests
from tools.kube.quantity import amount, quantity
from tools.plan.memory import Room
from tools.plan.outlook import Plan, Run
from tools.workload import kinds
from tools.workload.workload import Workload, number
from training.config import Config


def of(manifests: Manifests) -> Plan:
    """Return the plan of the job. Raises UserError and ConfigError if there is nothing to plan from."""
    job, config = kinds.job_of(manifests), load_config(manifests, repo.root())
    if config is None:
        raise UserError(
            f"{manifests.source}: holds no configuration of the trainer to plan from",
            "a script of your own is measured: yard plan calibrate on its first run",
        )
    return of_job(job, config)


def of_job(job: Workload, config: Config) -> Plan:
    """Return the plan of a job with this configuration. Raises UserError and ConfigError."""
    instance = machine(job)
    room = room_on(instance) if instance else _room_of_pod(job)
    return Plan(Run.of(job.name, config, job.nodes, _devices(job, room), instance))


def _devices(job: Workload, room: Room) -> Room:
    """Return the room with as many processes as a pod asks for devices."""
    found = 0
    for container in job.training_containers():
        limits = (container.get("resources") or container.get("resourcesPerNode") or {}).get("limits") or {}
        found = max(found, int(amount(limits.get(NVIDIA, 0)) or 0), int(amount(limits.get(NEURON, 0)) or 0) * 2)
    return Room(found, room.nbytes, room.what) if found and room.what == "GPU" else room


def _room_of_pod(job: Workload) -> Room:
    """Return the share of the pod's memory of each process, where the machine is not known."""
    processes = number(str(job.spec.get("nprocPerNode") or 1)) or 1
    container = job.training_containers()[0]
    limits = (container.get("resources") or container.get("resourcesPerNode") or {}).get("limits") or {}
    if "memory" not in limits:
        raise UserError(f"{job.title}: neither the type of its machine nor a limit of memory is known")
    return Room(processes, int(quantity(limits["memory"])) // processes, "process")
