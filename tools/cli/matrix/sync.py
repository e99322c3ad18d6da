"""Write every cell's directory; remove generated ones that the matrix no longer has."""

from tools.cells import matrix
from tools.cli.matrix.check import as_data
from tools.core import output, repo


def command(as_json: bool) -> None:
    state = matrix.sync(repo.root())
    lines = [f"{change.verb} {repo.shown(change.path)}" for change in state.changes]
    cells, files = output.count(len(state.cells), "cell"), output.count(len(state.changes), "file")
    output.answer(as_data(state), [*lines, f"{cells}, {files} changed"], as_json)
