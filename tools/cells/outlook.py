"""The plan of a rendered job: `tools.plan` applied to its configuration and the machines that its pods take."""

from tools.cells.knobs import machine
from tools.cells.memory import room_on
from tools.cells.trainer_config import load_config
from tools.core import UserError, repo
from tools.facts.instances import Instance
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
    return Plan(Run.of(job.name, config, job.nodes, _room(job, instance), instance))


def _room(job: Workload, instance: Instance | None) -> Room:
    """Return the memory of each process; 0 bytes, unknown, where pods ask for GPUs of a machine without a type."""
    containers = job.training_containers()
    limits = [(one.get("resources") or one.get("resourcesPerNode") or {}).get("limits") or {} for one in containers]
    gpus = max((int(amount(of[key]) or 0) for of in limits for key in of if str(key).endswith("/gpu")), default=0)
    if instance:
        room = room_on(instance)
        return Room(gpus, room.nbytes, room.what) if gpus and room.what == "GPU" else room
    if gpus:
        return Room(gpus, 0, "GPU")
    processes = number(str(job.spec.get("nprocPerNode") or 1)) or 1
    if "memory" not in limits[0]:
        raise UserError(f"{job.title}: neither the type of its machine nor a limit of memory is known")
    return Room(processes, int(quantity(limits[0]["memory"])) // processes, "process")
