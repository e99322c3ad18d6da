"""Print the device memory that each process of a cell needs, and what it has."""

from contextlib import suppress
from itertools import product

from tools.cells import matrix
from tools.cells import memory as cells_memory
from tools.core import UserError, output, repo
from tools.plan.memory import GIB, Estimate


def command(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    root, found = repo.root(), matrix.read(repo.root())
    chosen = [_pair(found, name) for name in names] if names else [cell for cell in found.cells if not cell.script]
    estimates = [(cell, cells_memory.of_cell(root, cell)) for cell in chosen]
    extra = [(cell, cells_memory.of_cell(root, cell)) for cell in (_others(found) if every else [])]
    if as_json:
        output.data([_as_data(cell, estimate) for cell, estimate in [*estimates, *extra]])
    else:
        for cell, estimate in estimates:
            _print_estimate(cell, estimate, whole=bool(names))
        for cell, estimate in extra:
            _print_estimate(cell, estimate, whole=False, note=", no cell")
    return 0 if all(estimate.fits for _, estimate in estimates) else 1


def _others(found: matrix.Matrix) -> list[matrix.Cell]:
    """Return the smallest cell of each pair that the matrix does not have and that can share a batch."""
    known = {cell.name for cell in found.cells}
    cells = []
    for hardware, model in product(sorted(found.machines), found.models):
        if f"{hardware}/{model}" not in known:
            with suppress(UserError):
                cells.append(cells_memory.smallest(repo.root(), found, hardware, model))
    return cells


def _pair(found: matrix.Matrix, name: str) -> matrix.Cell:
    """Return the cell that `name` means, or the smallest of a pair that has none."""
    short = name.removeprefix("overlays/").rstrip("/")
    cells = {cell.name: cell for cell in found.cells}
    if short in cells:
        return cells[short]
    hardware, _, model = short.partition("/")
    if hardware in found.machines and model in found.models:
        return cells_memory.smallest(repo.root(), found, hardware, model)
    pairs = [f"{hardware}/{model}" for hardware in found.machines for model in found.models]
    match = repo.nearest(short, pairs, cutoff=0.7)
    new = "a new model or hardware: docs/extending.md"
    raise UserError(f"no such pair of hardware and model: {name}", f"did you mean {match}?" if match else new)


def _print_estimate(cell: matrix.Cell, estimate: Estimate, whole: bool, note: str = "") -> None:
    result = "fits" if estimate.fits else "does not fit"
    output.line(f"{cell.name}{note}, {cells_memory.where(cell)}: {estimate.summary()}: {result}")
    if not whole:
        return
    for term in estimate.terms:
        output.line(f"  {term.nbytes / GIB:8.2f} GiB  {term.name}: {term.how}")
    for term in estimate.left_out:
        output.line(f"  {term.nbytes / GIB:8.2f} GiB  {term.name}, at another time and not counted: {term.how}")


def _as_data(cell: matrix.Cell, estimate: Estimate) -> dict[str, object]:
    instance = cell.instance.name if cell.instance else None
    return {"cell": cell.name, "nodes": cell.nodes, "instance": instance, **estimate.as_dict()}
