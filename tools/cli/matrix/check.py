"""Compare every cell's directory with the matrix and show the differences.

\b
Example: yard matrix check
Exit codes: 0 all are equal, 1 a file differs, 2 the matrix is wrong.
"""

import itertools

import click

from tools.cells import matrix
from tools.cli.matrix._changes import print_json
from tools.core import output, repo


@click.command(name="check", help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def command(as_json: bool) -> int:
    state = matrix.check(repo.root())
    if as_json:
        print_json(state)
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
