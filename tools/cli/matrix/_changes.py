"""What `sync` and `check` share: how they print the matrix's state."""

from tools.cells import matrix
from tools.core import output, repo


def print_json(state: matrix.State) -> None:
    """Print the cells, and the changes with their diffs, as JSON."""
    changes = [
        {"file": repo.shown(change.path), "change": change.verb, "diff": change.diff(repo.root())}
        for change in state.changes
    ]
    output.data({"cells": [cell.name for cell in state.cells], "changes": changes})
