"""The cells in the fact CELLS of a cluster, and whether its node groups have the nodes for them."""

from functools import cache
from pathlib import Path

from tools.cells import matrix_file
from tools.cells.matrix_file import Cell
from tools.cluster.spec import Spec
from tools.core import UserError, did_you_mean, repo


def of(spec: Spec) -> list[Cell]:
    """Return the cells in CELLS. Raises UserError for one that does not exist."""
    known = _known(repo.root())
    found = []
    for name in (one.strip() for one in (spec.get("CELLS") or "").split(",") if one.strip()):
        if name not in known:
            raise UserError(f"{spec.at('CELLS')}: no such cell: {name}", did_you_mean(name, known))
        found.append(known[name])
    return found


def check(spec: Spec) -> None:
    """Raise UserError for a cell that needs more nodes of its instance type than any node group has."""
    for cell in of(spec):
        if cell.instance is None:  # runs on any node
            continue
        kind = cell.instance.name
        groups = [group for group in spec.groups if group.instance.name == kind]
        most = max((group.most for group in groups), default=0)
        if most < cell.nodes:
            there = f"{groups[0].at} has at most {most}" if groups else "no node group has this type"
            hint = f"add a group of {kind} 0-{cell.nodes}, or remove the cell from CELLS"
            message = f"the cell {cell.name} needs {cell.nodes} of {kind}, but {there}"
            raise UserError(f"{spec.at('CELLS')}: {message}", hint)


@cache
def _known(root: Path) -> dict[str, Cell]:
    return {cell.name: cell for cell in matrix_file.load(root)}
