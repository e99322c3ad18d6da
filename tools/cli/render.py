"""Print the objects that a cluster would be given for a cell."""

from __future__ import annotations

import click
from ruamel.yaml import YAML

from tools.cells import kustomize, locate
from tools.core import output, repo


@click.command(
    name="render",
    epilog="\b\nExamples:\n  yard render overlays/cpu/llama-tiny\n"
    "  yard render cpu/llama-tiny | kubectl apply --server-side -f -",
)
@click.argument("cell")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of the objects.")
def command(cell: str, as_json: bool) -> None:
    """Print CELL as YAML, exactly as `kubectl kustomize` would.

    CELL is overlays/<hardware>/<model>, <hardware>/<model>, or any directory with a kustomization.
    """
    path = locate.cell_path(cell)
    text = kustomize.ensure(repo.root(), output.note).build(path)
    if as_json:
        output.data(list(YAML(typ="safe", pure=True).load_all(text)), raw=True)
    else:
        output.block(text, raw=True)
