"""Print the job that compiles a trn1 cell's graphs before it trains.

It is CELL with overlays/hardware/trn1/precompile above it: the same image, nodes, configuration and command,
behind neuron_parallel_compile. When it has ended, the cell's own job finds the graphs in the shared cache.

\b
Examples:
  yard precompile trn1/bert-large | kubectl apply --server-side -f -
  kubectl logs trn1-bert-large-train-graphs-worker-0 | yard job metrics -
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.cells import kustomize, locate
from tools.core import output, repo
from tools.core.errors import UserError

COMPONENT = "overlays/hardware/trn1/precompile"
HARDWARE = "trn1"


@click.command(help=__doc__, short_help="print the job that compiles a trn1 cell's graphs")
@click.argument("cell")
def command(cell: str) -> None:
    output.block(render(locate.cell_path(cell)), raw=True)


def render(cell: Path) -> str:
    """Return the precompile job of the cell in a directory as YAML. Raises UserError for hardware other than
    trn1.
    """
    if cell.parent != repo.root() / "overlays" / HARDWARE:
        raise UserError(
            f"{repo.shown(cell)} is not a cell of {HARDWARE}: only Neuron graphs are compiled beforehand",
            f"yard precompile {HARDWARE}/bert-large",
        )
    return kustomize.with_component(cell, COMPONENT)
