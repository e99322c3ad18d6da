"""Print the objects that a cluster would be given for a cell."""

from tools.cells import knobs as cells_knobs
from tools.cells import kustomize, locate
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.core import output, repo
from tools.kube.manifests import GENERATED, written


@_knobs.knobs
def command(cell: str | None, file: str | None, knobs: Knobs, as_json: bool) -> None:
    if cell is not None and file is None and not knobs and not as_json:
        output.block(kustomize.ensure(repo.root(), output.note).build(locate.cell_path(cell)), raw=True)
        return
    objects = cells_knobs.rendered(cell, file, knobs).objects
    for metadata in (one["metadata"] for one in objects):
        if metadata["name"] == f"{metadata.get('generateName')}{GENERATED}":
            del metadata["name"]  # the API server makes another one for each object
    if as_json:
        output.data(objects, raw=True)
        return
    output.block(written(objects), raw=True)
