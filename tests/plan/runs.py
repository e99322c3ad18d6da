"""The run of a cell, and a model and a machine, for the tests of the planner."""

from __future__ import annotations

from dataclasses import replace

from tools.cells import matrix
from tools.cells.memory import room_on
from tools.core import repo
from tools.plan.layout import CARDS, Machine, Shape
from tools.plan.outlook import Run

ROOT = repo.root()
LLAMA = Shape(4096, 14336, 32, 32, 8, 128256)
H100 = Machine(CARDS["H100"], 400e9, "EFA")


def run(name: str = "p5/llama-3-1-8b", **changes: object) -> Run:
    """Return the run of a cell, with changes of its layout."""
    cell = next(one for one in matrix.read(ROOT).cells if one.name == name)
    assert cell.instance is not None
    found = Run.of(name, matrix.configuration(ROOT, cell), cell.nodes, room_on(cell.instance), cell.instance)
    return replace(found, layout=replace(found.layout, **changes))  # type: ignore[arg-type]
