"""Write every cell's directory; remove generated ones that the matrix no longer has."""

from tools.cells import matrix
from tools.cli.matrix._changes import print_json
from tools.core import output, repo


def command(as_json: bool) -> None:
    state = matrix.sync(repo.root())
    if as_json:
        print_json(state)
        return
    for change in state.changes:
        output.line(f"{change.verb} {repo.shown(change.path)}")
    cells, files = output.count(len(state.cells), "cell"), output.count(len(state.changes), "file")
    output.line(f"{cells}, {files} changed")
