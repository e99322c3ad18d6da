"""Print the objects that a cluster would be given for a cell."""

import click

from tools.cells import knobs as cells_knobs
from tools.cells import kustomize, locate
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.core import output, repo
from tools.kube.manifests import written


@click.command(
    name="render",
    epilog="\b\nExamples:\n  yard render overlays/cpu/llama-tiny\n"
    "  yard render cpu/llama-tiny --nodes 4 --name lr-1e-4 --set train.learning_rate=1e-4\n"
    "  yard render cpu/llama-tiny | kubectl apply --server-side -f -",
)
@_knobs.target
@_knobs.options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of the objects.")
def command(cell: str | None, file: str | None, knobs: Knobs, as_json: bool) -> None:
    """Print CELL, or the objects of FILE, as YAML.

    Without options, CELL is printed exactly as `kubectl kustomize` would.

    CELL is overlays/<hardware>/<model>, <hardware>/<model>, or any directory with a kustomization.
    """
    if cell is not None and file is None and not knobs and not as_json:
        output.block(kustomize.ensure(repo.root(), output.note).build(locate.cell_path(cell)), raw=True)
        return
    objects = cells_knobs.rendered(cell, file, knobs).objects
    if as_json:
        output.data(objects, raw=True)
        return
    output.block(written(objects), raw=True)
