"""Write the cells of overlays/matrix.yaml, check them, or print the memory that they need."""

from __future__ import annotations

import itertools

import click

from tools.cells import matrix
from tools.cells import memory as cell_memory
from tools.cells.memory_model import GIB, Estimate
from tools.core import output, repo
from tools.core.errors import UserError

EPILOG = """\b
Examples:
  yard matrix sync
  yard matrix check
  yard matrix memory p5/llama-3-1-8b"""


@click.group(name="matrix", epilog=EPILOG)
def command() -> None:
    """Cells are overlays/<hardware>/<model>; overlays/matrix.yaml says which exist."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was changed as JSON.")
def sync(as_json: bool) -> int:
    """Write every cell's directory; remove generated ones that the matrix no longer has."""
    state = matrix.sync(repo.root())
    if as_json:
        _print_json(state)
        return 0
    for change in state.changes:
        output.line(f"{change.verb} {repo.shown(change.path)}")
    output.line(f"{_count(state.cells, 'cell')}, {_count(state.changes, 'file')} changed")
    return 0


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def check(as_json: bool) -> int:
    """Exit with 1 and show the difference when a cell is not what the matrix says."""
    state = matrix.check(repo.root())
    if as_json:
        _print_json(state)
    elif state.changes:
        for change in state.changes:
            output.line(change.diff(repo.root()).rstrip("\n"))
        differ = "differs" if len(state.changes) == 1 else "differ"
        output.error(
            f"{_count(state.changes, 'file')} {differ} from {matrix.MATRIX}", "run: yard matrix sync"
        )
    else:
        output.line(f"{_count(state.cells, 'cell')} as in {matrix.MATRIX}")
        for hardware, cells in itertools.groupby(state.cells, key=lambda cell: cell.hardware):
            output.line(f"  {hardware}: {', '.join(cell.model for cell in cells)}")
    return 1 if state.changes else 0


@command.command()
@click.argument("names", nargs=-1, metavar="[CELL]...")
@click.option("--json", "as_json", is_flag=True, help="Print every term in bytes as JSON.")
def memory(names: tuple[str, ...], as_json: bool) -> int:
    """Print what each process of a cell needs of its device's memory, and what is there.

    CELL is <hardware>/<model>; it may be a pair that has no cell because it does not fit. For each one the
    terms are printed; without any, one line for every pair. Exit with 1 when a cell does not fit. The figures
    are an estimate: docs/extending.md says what it counts.
    """
    found = matrix.read(repo.root())
    chosen = [_pair(found, name) for name in names] if names else _pairs(found)
    estimates = [(cell, cell_memory.of_cell(repo.root(), cell)) for cell in chosen]
    if as_json:
        output.data([_as_data(cell, estimate) for cell, estimate in estimates])
    for cell, estimate in estimates if not as_json else ():
        _print_estimate(cell, estimate, whole=bool(names))
    expected = {cell.name for cell in (chosen if names else found.cells)}  # what was only tried need not fit
    return 0 if all(estimate.fits for cell, estimate in estimates if cell.name in expected) else 1


def _pairs(found: matrix.Matrix) -> list[matrix.Cell]:
    """Return all cells, and what was tried and does not fit."""
    tried = [one.tried for one in found.absences if one.tried is not None]
    return sorted([*found.cells, *tried], key=lambda cell: cell.name)


def _pair(found: matrix.Matrix, name: str) -> matrix.Cell:
    """Return the cell that `name` means, or the one that was tried; UserError when there is neither."""
    short = name.removeprefix("overlays/").rstrip("/")
    pairs = {cell.name: cell for cell in _pairs(found)}
    if short in pairs:
        return pairs[short]
    reason = next((one.reason for one in found.absences if one.name == short), None)
    if reason is not None:
        raise UserError(f"{name} has no cell: {reason}")
    match = repo.nearest(short, pairs)
    raise UserError(f"no such cell: {name}", f"did you mean {match}?" if match else None)


def _print_estimate(cell: matrix.Cell, estimate: Estimate, whole: bool) -> None:
    says = "fits" if estimate.fits else "does not fit"
    output.line(f"{cell.name}, {cell_memory.where(cell)}: {estimate.summary()}: {says}")
    if not whole:
        return
    for term in estimate.terms:
        output.line(f"  {term.nbytes / GIB:8.2f} GiB  {term.name}: {term.how}")
    for term in estimate.left_out:
        output.line(
            f"  {term.nbytes / GIB:8.2f} GiB  {term.name}, at another time and not counted: {term.how}"
        )


def _as_data(cell: matrix.Cell, estimate: Estimate) -> dict[str, object]:
    return {
        "cell": cell.name,
        "nodes": cell.nodes,
        "instance": cell.instance.name if cell.instance else None,
        "fits": estimate.fits,
        "needed": estimate.needed,
        "there": estimate.room.nbytes,
        "terms": [{"name": term.name, "bytes": term.nbytes, "how": term.how} for term in estimate.terms],
    }


def _print_json(state: matrix.State) -> None:
    changes = [
        {"file": repo.shown(change.path), "change": change.verb, "diff": change.diff(repo.root())}
        for change in state.changes
    ]
    output.data({"cells": [cell.name for cell in state.cells], "changes": changes})


def _count(things: list[matrix.Cell] | list[matrix.Change], name: str) -> str:
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")
