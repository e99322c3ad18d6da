"""Print the job that compiles a Neuron cell's graphs before it trains."""

from pathlib import Path

from tools.cells import kustomize, locate, matrix
from tools.core import UserError, output, repo
from tools.facts.instances import NEURON

COMPONENT = "overlays/feature/precompile"


def command(cell: str) -> None:
    output.block(render(locate.cell_path(cell)), raw=True)


def render(cell: Path) -> str:
    """Return the precompile job of a cell's directory as YAML. Raises UserError without Neuron devices."""
    found = next((one for one in matrix.load(repo.root()) if repo.root() / "overlays" / one.name == cell), None)
    if found is None or found.instance is None or found.instance.device_resource != NEURON:
        message = f"{repo.shown(cell)} is not a cell of the matrix for Neuron devices"
        raise UserError(f"{message}: only Neuron graphs are compiled beforehand", "yard precompile trn1/bert-large")
    return kustomize.with_component(cell, COMPONENT)
