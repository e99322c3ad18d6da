"""Compare every cell's directory with the matrix and show the differences."""

import itertools

from tools.cells import matrix
from tools.core import output, repo


def command(as_json: bool) -> int:
    state = matrix.check(repo.root())
    if as_json:
        output.data(as_data(state))
    elif state.changes:
        for change in state.changes:
            output.block(change.diff(repo.root()))
        differ = "differs" if len(state.changes) == 1 else "differ"
        files = output.count(len(state.changes), "file")
        output.error(f"{files} {differ} from {matrix.MATRIX}", "run: yard matrix sync")
    else:
        output.line(f"{output.count(len(state.cells), 'cell')} as in {matrix.MATRIX}")
        for hardware, cells in itertools.groupby(state.cells, key=lambda cell: cell.hardware):
            output.line(f"  {hardware}: {', '.join(cell.model for cell in cells)}")
    return 1 if state.changes else 0


def as_data(state: matrix.State) -> dict[str, object]:
    """Return the cells, and the changes with their diffs, as plain data."""
    changes = [
        {"file": repo.shown(change.path), "change": change.verb, "diff": change.diff(repo.root())}
        for change in state.changes
    ]
    return {"cells": [cell.name for cell in state.cells], "changes": changes}
