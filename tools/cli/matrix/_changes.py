"""What `sync` and `check` share: how they print the matrix's state."""

from tools.cells import matrix
from tools.core import repo


def as_data(state: matrix.State) -> dict[str, object]:
    """Return the cells, and the changes with their diffs, as plain data."""
    changes = [
        {"file": repo.shown(change.path), "change": change.verb, "diff": change.diff(repo.root())}
        for change in state.changes
    ]
    return {"cells": [cell.name for cell in state.cells], "changes": changes}
