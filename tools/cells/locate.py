"""Which directory a user means by a cell's name."""

import shlex
from pathlib import Path

from tools.cells import kustomize
from tools.cells.kustomize_graph import KUSTOMIZATION_NAMES, NOT_CELLS, is_kustomization
from tools.core import UserError, repo
from tools.kube.manifests import Manifests


def cells() -> list[str]:
    """Return the names of all cells, as `overlays/<hardware>/<model>`."""
    overlays = repo.root() / "overlays"
    found = {path.parent for name in KUSTOMIZATION_NAMES for path in overlays.glob(f"*/*/{name}")}
    return sorted(one.relative_to(repo.root()).as_posix() for one in found if one.parent.name not in NOT_CELLS)


def cell_path(text: str) -> Path:
    """Return the directory of a cell: `cpu/llama-tiny` in the checkout, or any path with a kustomization.

    Raises UserError with a hint: why the pair has no cell, or the nearest cell.
    """
    for candidate in (Path(text).expanduser(), repo.root() / text, repo.root() / "overlays" / text):
        if candidate.is_dir() and is_kustomization(candidate):
            return candidate.resolve()
    path = Path(text).expanduser()
    if (path / "run.json").is_file():
        own = shlex.quote(str(path))
        hint = f"yard job why --log {own}/logs/*.log; yard job goodput {own}"
        raise UserError(f"{text}: a run of this machine, and neither a job nor a cell", hint)
    if path.is_dir():
        raise UserError(f"{text}: no kustomization.yaml in this directory", _hint(text))
    raise UserError(f"no such cell: {text}", _hint(text))


def rendered(text: str) -> Manifests:
    """Return the objects of the cell that `text` names. Raises UserError."""
    return kustomize.rendered(cell_path(text))


def _hint(text: str) -> str:
    known = [name.removeprefix("overlays/") for name in cells()]
    wanted = text.removeprefix("overlays/").rstrip("/")
    hardware, _, model = wanted.partition("/")
    if same_model := [name for name in known if name.endswith(f"/{hardware}")] if not model else []:
        return f"a cell is HARDWARE/MODEL: {', '.join(same_model)}"
    if _is_component("hardware", hardware) and _is_component("model", model):
        there = ", ".join(name for name in known if name.startswith(f"{hardware}/")) or "none"
        return f"{_need(hardware, model)}; cells of {hardware}: {there}"
    match = repo.nearest(wanted, known)
    if match is not None:
        return f"did you mean overlays/{match}?"
    return "yard matrix check lists the cells" if known else "this checkout has no cells under overlays/"


def _is_component(kind: str, name: str) -> bool:
    overlays = repo.root() / "overlays"
    return bool(name) and name in {path.parent.name for path in overlays.glob(f"{kind}/*/{kind}.yaml")}


def _need(hardware: str, model: str) -> str:
    """Return what the smallest cell of a pair would need, in one line."""
    from tools.cells import matrix, memory

    cell = memory.smallest(repo.root(), matrix.read(repo.root()), hardware, model)
    estimate = memory.of_cell(repo.root(), cell)
    return f"{estimate.summary()}, on {memory.where(cell)} (yard matrix memory {hardware}/{model})"
