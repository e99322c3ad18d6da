"""The matrix of cells: generates overlays/ from `overlays/matrix.yaml` and the table of instance types.

It writes the leaves `overlays/<hardware>/<model>` and the sizes `overlays/hardware/<hardware>/<instance>`:
a Component for each machine that is a hardware's default or that one of its cells names.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.cells import hardware, instance_patch
from tools.cells.kustomize_graph import NOT_CELLS, refuse_diamonds
from tools.cells.matrix_file import JOB, MARK, MATRIX, Cell, Matrix, load, read, text_of
from tools.core import UserError, repo, tables
from tools.facts.instances import Instance
from tools.workload.pytorchjob import RESTARTS_PER_NODE
from training import config
from training.config import elastic

__all__ = [
    "MATRIX", "Cell", "Change", "Matrix", "State", "changes", "check",
    "configuration", "load", "prove", "read", "sync",
]  # fmt: skip

BASE = "base/pytorchjob"
HARDWARE = "overlays/hardware"
IMAGES = "images"  # below overlays/: the one Component that `yard image pin` writes
HEADER = f"{MARK} from {MATRIX}. Change it there.\n"
SIZE_HEADER = f"{MARK} from tools/facts/instances.yaml. Change it there.\n"
LEAF_FILES = ("kustomization.yaml", "cell.yaml")
SIZE_FILES = ("kustomization.yaml", "pytorchjob.yaml")
IN_PATCH = " " * 6  # the indentation of a leaf's patches
_TEXTS: dict[str, str] = tables.load("cells/texts.yaml")


@dataclass(frozen=True)
class Change:
    """One generated file that differs from what the matrix says."""

    path: Path
    old: str | None  # None: the file is missing
    new: str | None  # None: the cell has left the matrix

    @property
    def verb(self) -> str:
        """What `sync` does: write or remove."""
        return "remove" if self.new is None else "write"

    def diff(self, root: Path) -> str:
        """Return the change as a unified diff with paths below `root`."""
        return repo.diff(self.path.relative_to(root).as_posix(), self.old, self.new)


@dataclass(frozen=True)
class State:
    """The matrix beside what is on disk."""

    cells: list[Cell]
    changes: list[Change]


def leaf(cell: Cell) -> dict[str, str]:
    """Return the files of a cell's leaf, name to text. The same cell gives the same bytes."""
    parts = [f"hardware/{cell.hardware}", f"model/{cell.model}"]
    if cell.instance is not None:
        parts.insert(1, f"hardware/{cell.hardware}/{cell.instance.name}")
    parts.append(IMAGES)  # last: it pins what the hardware has named
    retry = cell.sections.get("retry") or {}
    most = retry.get("most", RESTARTS_PER_NODE)
    bounded = cell.least is not None
    text = _TEXTS["leaf"].format(
        hardware=cell.hardware,
        model=cell.model,
        nodes=cell.nodes,
        job=JOB,
        least=cell.least or cell.nodes,
        elastic=_in_patch("elastic") if bounded else "",
        bounds=_TEXTS["bounds"].format(least=cell.least, nodes=cell.nodes) if bounded else "",
        restarts=_in_patch("restarts", most=most) if retry else "",
        trainer_restarts=_in_patch("trainer restarts", most=most) if retry else "",
        backoff_limit=most * cell.nodes,
        components=", ".join(f"../../{part}" for part in parts),
        own="" if cell.script else _TEXTS["own"],
    )
    own = {} if cell.script else {"cell.yaml": HEADER + _dump(cell.sections)}
    return {"kustomization.yaml": HEADER + text, **own}


def _in_patch(name: str, **values: object) -> str:
    """Return the operations of a text, which come before others of a leaf's patch."""
    text: str = _TEXTS[name].format(**values)
    return text.replace("\n", "\n" + IN_PATCH)


def size(instance: Instance) -> dict[str, str]:
    """Return the files of the Component that fits a job to machines of one type, name to text."""
    kustomization = _TEXTS["size"].format(name=instance.name, summary=_summary(instance), job=JOB)
    return {
        "kustomization.yaml": SIZE_HEADER + kustomization,
        "pytorchjob.yaml": SIZE_HEADER + instance_patch.patch(instance),
    }


def _summary(instance: Instance) -> str:
    parts = [f"{instance.vcpus} vCPU, {instance.memory_mib // 1024} GiB"]
    if instance.accelerator is not None:
        each = f"{instance.accelerator_memory_mib / 1024:.0f} GiB"
        parts.append(f"{instance.accelerators} x {instance.accelerator} of {each}")
    if instance.efa:
        parts.append(f"{instance.efa} EFA")
    return ", ".join(parts)


def wanted(root: Path, matrix: Matrix) -> dict[Path, str]:
    sizes = {(cell.hardware, cell.instance) for cell in matrix.cells}
    sizes |= set(matrix.machines.items())
    files = {
        root / HARDWARE / one / instance.name / name: text
        for one, instance in sizes
        if instance is not None
        for name, text in size(instance).items()
    }
    files |= {
        root / HARDWARE / one / name: HEADER + text
        for one, instance in matrix.machines.items()
        if instance is not None
        for name, text in hardware.files(one, instance).items()
    }
    return files | {
        root / "overlays" / cell.name / name: text for cell in matrix.cells for name, text in leaf(cell).items()
    }


def changes(root: Path, matrix: Matrix) -> list[Change]:
    """Return the generated files that differ from the matrix, by path.

    Raises UserError if another file is in the way.
    """
    asked = wanted(root, matrix)
    found = {path: text_of(path, root) for path in _generated_files(root)}
    for path in sorted(asked):
        if path in found and not found[path].startswith(MARK):
            raise UserError(
                f"{path.relative_to(root)} was not generated, and {MATRIX} generates a file of that name",
                "move the file, or remove the entry from the matrix",
            )
    stale = {path for path, text in found.items() if path not in asked and text.startswith(MARK)}
    differing = {path for path, text in asked.items() if found.get(path) != text}
    return [Change(path, found.get(path), asked.get(path)) for path in sorted(stale | differing)]


def check(root: Path) -> State:
    """Return the matrix's cells and what `sync` would change.

    Raises UserError when a cell itself is wrong: a Component reached twice, an unknown configuration key, a
    key outside its owner's file, an impossible value, or a batch that the cell's processes cannot share.
    """
    matrix = read(root)
    found = changes(root, matrix)
    for cell in matrix.cells:
        prove(root, cell)
    return State(matrix.cells, found)


def sync(root: Path) -> State:
    """Write overlays/ from the matrix, each file at once, and return what changed. Raises UserError as `check` does."""
    state = check(root)
    for change in state.changes:
        try:
            _apply(change, root / "overlays")
        except OSError as problem:
            raise UserError(f"{change.path.relative_to(root)}: {problem.strerror}") from problem
    return state


def prove(root: Path, cell: Cell) -> None:
    """Check a cell's parts together. Raises UserError."""
    overlays = root / "overlays"
    own = overlays / "hardware" / cell.hardware
    generated = [own, own / cell.instance.name] if cell.instance is not None else []
    missing = [part for part in generated if not (part / "kustomization.yaml").exists()]  # until the first sync
    parts = [root / BASE, own, overlays / "model" / cell.model, overlays / IMAGES, *generated[1:]]
    parts = [part for part in parts if part not in missing]
    refuse_diamonds(root, f"overlays/{cell.name}", parts)
    if cell.script:
        return
    checked = configuration(root, cell)
    if cell.instance is None:
        return
    try:
        elastic.check(checked, cell.nodes * cell.instance.processes, cell.instance.processes)
    except config.ConfigError as problem:
        raise UserError(f"{MATRIX}:{cell.line}: cells.{cell.hardware}.{cell.model}: {problem}") from problem


def configuration(root: Path, cell: Cell) -> config.Config:
    """Return the trainer's configuration of a cell. Raises UserError that names file, line and key."""
    if cell.script:
        raise UserError(f"{cell.name} runs a script of your own: trainyard does not know its model")
    texts = {"cell": cell.source}
    for kind, name in (("hardware", cell.hardware), ("model", cell.model)):
        path = root / "overlays" / kind / name / f"{kind}.yaml"
        if kind == "hardware" and cell.instance is not None and not path.exists():  # the first sync writes it
            text = hardware.files(name, cell.instance)["hardware.yaml"]
        else:
            text = text_of(path, root)
        texts[kind] = (path.relative_to(root).as_posix(), text)
    try:
        return config.load_texts(texts)
    except config.ConfigError as problem:
        raise UserError(str(problem), f"cell {cell.name}: {MATRIX}:{cell.line}") from problem


def _generated_files(root: Path) -> list[Path]:
    """Return the files of all leaves, hardware and sizes, generated or not. Other Components are left out."""
    overlays = root / "overlays"
    leaves = (path for name in LEAF_FILES for path in overlays.glob(f"*/*/{name}"))
    sizes = [path for name in SIZE_FILES for path in (root / HARDWARE).glob(f"*/*/{name}")]
    sizes += [path for name in hardware.FILES for path in (root / HARDWARE).glob(f"*/{name}")]
    return sorted([path for path in leaves if path.parent.parent.name not in NOT_CELLS] + sizes)


def _apply(change: Change, overlays: Path) -> None:
    if change.new is None:
        change.path.unlink()
        _remove_empty(change.path.parent, overlays)
    else:
        repo.write(change.path, change.new)


def _remove_empty(directory: Path, stop: Path) -> None:
    while directory != stop and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def _dump(sections: Mapping[str, Any]) -> str:
    yaml, text = YAML(typ="rt"), io.StringIO()
    yaml.dump(dict(sections), text)
    return text.getvalue()
