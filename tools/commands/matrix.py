"""Write the cells of overlays/matrix.yaml, or check that they are what it says."""

from __future__ import annotations

import click

from tools import matrix, output, repo


@click.group(name="matrix", epilog="\b\nExamples:\n  yard matrix sync\n  yard matrix check")
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
        output.line(f"{_count(state.cells, 'cell')} as in {matrix.MATRIX}: {_names(state.cells)}")
    return 1 if state.changes else 0


def _print_json(state: matrix.State) -> None:
    changes = [
        {"file": repo.shown(change.path), "change": change.verb, "diff": change.diff(repo.root())}
        for change in state.changes
    ]
    output.data({"cells": [cell.name for cell in state.cells], "changes": changes})


def _names(cells: list[matrix.Cell]) -> str:
    return ", ".join(cell.name for cell in cells) or "none"


def _count(things: list[matrix.Cell] | list[matrix.Change], name: str) -> str:
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")
