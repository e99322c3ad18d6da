"""The memory of the matrix's cells: memory_model's formula, fed with a cell and its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.cells import instance_patch
from tools.cells.matrix import MATRIX, Cell, configuration
from tools.cells.matrix_file import text_of
from tools.cells.memory_model import GIB, Estimate, Room, estimate
from tools.core.errors import UserError
from training.config import ConfigError

MIB = 2**20
UNITS = {"Gi": GIB, "Mi": MIB}


def of_cell(root: Path, cell: Cell) -> Estimate:
    """Return what each process of a cell needs and has. Raises UserError where the cell is not right."""
    try:
        return estimate(configuration(root, cell), cell.nodes, room_of(root, cell))
    except ConfigError as problem:
        raise UserError(f"{MATRIX}:{cell.line}: cells.{cell.hardware}.{cell.model}: {problem}") from problem


def room_of(root: Path, cell: Cell) -> Room:
    """Return the memory of each process of a cell: its share of an accelerator, or of the pod's memory."""
    instance = cell.instance
    if instance is None:
        return _room_of_component(root, cell.hardware)
    if not instance.accelerators:
        return Room(1, instance_patch.memory_mib(instance) * MIB, "pod")
    what = "GPU" if instance.cores_per_accelerator == 1 else "core"
    each = instance.accelerator_memory_mib * MIB // instance.cores_per_accelerator
    return Room(instance.processes, each, what)


def where(cell: Cell) -> str:
    """Return a cell's machines in words: `4 x g5.48xlarge`."""
    return f"{cell.nodes} x {cell.instance.name if cell.instance else 'pod'}"


def _room_of_component(root: Path, hardware: str) -> Room:
    """Return what the patch of a hardware Component without a machine of its own gives to a process."""
    path = root / "overlays/hardware" / hardware / "pytorchjob.yaml"
    operations = YAML(typ="safe", pure=True).load(text_of(path, root))
    values: dict[str, Any] = {one["path"].rpartition("/")[2]: one.get("value") for one in operations}
    try:
        processes = int(values["nprocPerNode"])
        nbytes = _bytes(values["resources"]["limits"]["memory"])
    except (KeyError, TypeError, ValueError) as problem:
        name = path.relative_to(root)
        raise UserError(f"{name}: needs nprocPerNode as a number and a memory limit in Gi or Mi") from problem
    return Room(processes, nbytes // processes, "process")


def _bytes(quantity: str) -> int:
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) * UNITS[unit]
