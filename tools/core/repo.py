"""Where the checkout is, and which directory a user means by a cell's name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from tools.core.errors import UserError

KUSTOMIZATION_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
NOT_CELLS = ("hardware", "model", "feature")


def root() -> Path:
    """Return the checkout that this package was loaded from."""
    return Path(__file__).resolve().parents[2]


def local() -> Path:
    """Return the directory that stands for the claim `trainyard` on this machine."""
    return root() / "local"


def cells() -> list[str]:
    """Return the names of all cells, as `overlays/<hardware>/<model>`."""
    overlays = root() / "overlays"
    found = {
        path.parent.relative_to(root()).as_posix()
        for name in KUSTOMIZATION_NAMES
        for path in overlays.glob(f"*/*/{name}")
        if path.parent.parent.name not in NOT_CELLS
    }
    return sorted(found)


def cell_path(text: str) -> Path:
    """Return the directory of the cell that `text` names.

    `text` is `overlays/cpu/llama-tiny` or `cpu/llama-tiny`, looked up in the checkout, or any path to a
    directory with a kustomization file, looked up from the working directory.
    Raises UserError, with the nearest cell's name, when there is none.
    """
    for candidate in (Path(text).expanduser(), root() / text, root() / "overlays" / text):
        if candidate.is_dir() and is_kustomization(candidate):
            return candidate.resolve()
    if Path(text).expanduser().is_dir():
        raise UserError(f"{text}: no kustomization.yaml in this directory", _cell_hint(text))
    raise UserError(f"no such cell: {text}", _cell_hint(text))


def is_kustomization(directory: Path) -> bool:
    """Say whether kustomize would take `directory` as a target."""
    return any((directory / name).is_file() for name in KUSTOMIZATION_NAMES)


def nearest(text: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name most like `text`, or None when nothing is alike."""
    matches = difflib.get_close_matches(text, list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def shown(path: Path) -> str:
    """Return `path` as a user at the checkout's root would type it."""
    try:
        return path.relative_to(root()).as_posix()
    except ValueError:
        return str(path)


def _cell_hint(text: str) -> str:
    known = cells()
    short = {name.removeprefix("overlays/"): name for name in known}
    match = nearest(text.removeprefix("overlays/").rstrip("/"), short)
    if match is not None:
        return f"did you mean {short[match]}?"
    if known:
        return "cells: " + ", ".join(known)
    return "this checkout has no cells under overlays/"
