"""The memory that cells need: `tools.plan.memory` applied to a cell and its machine."""

import json
from itertools import product
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.cells import instance_patch
from tools.cells.matrix import MATRIX, Cell, Matrix, configuration
from tools.cells.matrix_file import text_of
from tools.core.errors import UserError
from tools.facts.instances import Instance
from tools.kube.quantity import quantity
from tools.plan.memory import Estimate, Room, estimate
from tools.plan.outlook import Place, Plan, Run
from tools.plan.search import MICRO
from training.config import ConfigError


def of_cell(root: Path, cell: Cell) -> Estimate:
    """Return what each process of a cell needs and has. Raises UserError for a wrong cell."""
    return plan_of(root, cell).memory


def plan_of(root: Path, cell: Cell) -> Plan:
    """Return the plan of a cell. Raises UserError for a wrong cell."""
    try:
        return Plan(Run.of(cell.name, configuration(root, cell), cell.nodes, room_of(root, cell), cell.instance))
    except ConfigError as problem:
        raise UserError(f"{MATRIX}:{cell.line}: cells.{cell.hardware}.{cell.model}: {problem}") from problem


def room_of(root: Path, cell: Cell) -> Room:
    """Return the memory of each process of a cell: its share of an accelerator, or of the pod's memory."""
    if cell.instance is None:
        return _room_of_component(root, cell.hardware)
    return room_on(cell.instance)


def room_on(instance: Instance) -> Room:
    """Return the memory of each process on a machine: of its share of an accelerator, or of the pod."""
    return Room.on(instance, instance_patch.memory_mib(instance))


def where(cell: Cell | Place) -> str:
    """Return the machines of a cell or a plan in words: `4 x g5.48xlarge`."""
    return f"{cell.nodes} x {cell.instance.name if cell.instance else 'pod'}"


def smallest(root: Path, found: Matrix, hardware: str, model: str) -> Cell:
    """Return the cell of a pair that needs the least memory: what to try first for a pair that has no cell.

    It recomputes all activations and runs on the hardware's machine with the most memory, on at most as many
    nodes as the hardware's largest cell. Raises UserError if no number of nodes can share the model's batch.
    """
    trials = _trials(root, found, hardware, model, _largest(found, hardware))
    return min(trials, key=lambda trial: trial[0].needed)[1]


def fitting(root: Path, found: Matrix, hardware: str, model: str) -> Cell:
    """Return the cell of the fewest machines whose memory fits, with the largest micro batch.

    The hardware's default machine is tried first, then its largest one. The cell recomputes all activations.
    Raises UserError with the smallest need if none fits.
    """
    for machine in (found.machines[hardware], _largest(found, hardware)):
        fits = [cell for need, cell in _trials(root, found, hardware, model, machine) if need.fits]
        if fits:
            return min(fits, key=lambda cell: (cell.nodes, -cell.sections["parallel"]["micro_batch_size"]))
    cell = smallest(root, found, hardware, model)
    raise UserError(
        f"{hardware}/{model} does not fit: {of_cell(root, cell).summary()}, on {where(cell)}",
        f"name the cell in {MATRIX} yourself, or choose a hardware with more memory",
    )


def _largest(found: Matrix, hardware: str) -> Instance | None:
    """Return the machine with the most memory of those that the hardware's cells have."""
    machines = {cell.instance for cell in found.cells if cell.hardware == hardware}
    return max(filter(None, machines | {found.machines[hardware]}), key=_memory, default=None)


def _trials(
    root: Path, found: Matrix, hardware: str, model: str, machine: Instance | None
) -> list[tuple[Estimate, Cell]]:
    """Return every cell of a pair on a machine that can share the model's batch, with its need."""
    most = max((cell.nodes for cell in found.cells if cell.hardware == hardware), default=1)
    first = _trial(hardware, model, machine, 1, "ddp", 1)
    config, room = configuration(root, first), room_of(root, first)
    # As training/device/neuron.py: whole replicas there; BERT is data parallel everywhere.
    replicas = config.device.type == "neuron" or config.model.bert is not None
    needs: list[tuple[Estimate, Cell]] = []
    problem: ConfigError | None = None
    for sharding, nodes, micro in product(("ddp",) if replicas else ("fsdp", "ddp"), range(most, 0, -1), MICRO):
        cell = _trial(hardware, model, machine, nodes, sharding, micro)
        parallel = config.parallel.model_copy(update=cell.sections["parallel"])
        try:
            need = estimate(config.model_copy(update={"parallel": parallel}), nodes, room)
        except ConfigError as refused:
            problem = refused
            continue
        needs.append((need, cell))
    if not needs:
        raise UserError(f"{hardware}/{model}: {problem}")
    return needs


def _trial(hardware: str, model: str, machine: Instance | None, nodes: int, sharding: str, micro: int) -> Cell:
    parallel = {"micro_batch_size": micro, "sharding": sharding, "activation_checkpointing": "full"}
    sections = {"parallel": parallel, "checkpoint": {"every": 1}}
    source = (f"{hardware}/{model}, which has no cell", json.dumps(sections))
    return Cell(hardware, model, nodes, machine, sections, 1, source)


def _memory(instance: Instance) -> tuple[int, int]:
    """Memory of one device, then of all of a machine's devices, in MiB."""
    if not instance.accelerators:
        return instance_patch.memory_mib(instance), 0
    return instance.accelerator_memory_mib, instance.accelerators


def _room_of_component(root: Path, hardware: str) -> Room:
    """Return what a hardware Component without a machine gives each process."""
    path = root / "overlays/hardware" / hardware / "pytorchjob.yaml"
    operations = YAML(typ="safe", pure=True).load(text_of(path, root))
    values: dict[str, Any] = {one["path"].rpartition("/")[2]: one.get("value") for one in operations}
    try:
        processes = int(values["nprocPerNode"])
        nbytes = int(quantity(values["resources"]["limits"]["memory"]))
    except (KeyError, TypeError, ValueError, UserError) as problem:
        name = path.relative_to(root)
        raise UserError(f"{name}: needs nprocPerNode as a number and a memory limit such as 3Gi") from problem
    return Room(processes, nbytes // processes, "process")
