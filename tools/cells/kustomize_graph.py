"""The directories that a Kustomize target reaches, and the route to each."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tools.core.errors import UserError

KUSTOMIZATION_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
NOT_CELLS = ("hardware", "model", "feature")  # directories below overlays/ that hold Components
REFERENCES = ("resources", "components")  # the two keys of a kustomization that can name a directory


def is_kustomization(directory: Path) -> bool:
    """Return whether kustomize would take `directory` as a target."""
    return any((directory / name).is_file() for name in KUSTOMIZATION_NAMES)


def refuse_diamonds(root: Path, target: str, parts: Iterable[Path]) -> None:
    """Refuse a target that reaches a directory twice through its `parts`.

    Kustomize would apply such a Component once for each route and exit with 0, which duplicates every list
    entry that it appends. Raises UserError with both routes, or for a kustomization that is not readable.
    """
    routes: dict[Path, str] = {}
    for part in parts:
        _walk(root, part.resolve(), target, routes)


def reached(root: Path, target: Path) -> list[Path]:
    """Return the local directories of a target, itself first.

    Raises UserError if one is reached twice or cannot be read.
    """
    routes: dict[Path, str] = {}
    _walk(root, target.resolve(), "", routes)
    return list(routes)


def _walk(root: Path, directory: Path, route: str, routes: dict[Path, str]) -> None:
    name = _shown(root, directory)
    here = f"{route} -> {name}" if route else name
    if directory in routes:
        raise UserError(
            f"{name} is reached twice and would be applied twice",
            f"once by {routes[directory]}, once by {here}; remove one of them",
        )
    routes[directory] = here
    for reference in _references(root, directory):
        _walk(root, reference, here, routes)


def _references(root: Path, directory: Path) -> list[Path]:
    """Return the local directories that the kustomization in `directory` names, without remote ones."""
    path = next((directory / name for name in KUSTOMIZATION_NAMES if (directory / name).is_file()), None)
    if path is None:
        raise UserError(f"{_shown(root, directory)}: no kustomization.yaml in this directory")
    from tools.cells.matrix_file import text_of  # slow to import, and most users only ask `is_kustomization`

    try:
        document = _document(text_of(path, directory))
    except UserError as problem:
        raise UserError(f"{_shown(root, directory)}/{problem.message}") from None
    except YAMLError as problem:
        raise UserError(f"{_shown(root, path)}: {str(problem).splitlines()[0]}") from problem
    if not isinstance(document, dict):
        raise UserError(f"{_shown(root, path)}: a mapping is needed")
    named = (entry for key in REFERENCES for entry in document.get(key) or () if isinstance(entry, str))
    return [found for entry in named if (found := (directory / entry).resolve()).is_dir()]


@functools.lru_cache(maxsize=256)  # cells share most of their directories
def _document(text: str) -> Any:
    """Return what a kustomization's text holds; callers share it and only read it. Raises YAMLError."""
    return YAML(typ="safe", pure=True).load(text)


def _shown(root: Path, path: Path) -> str:
    resolved = root.resolve()
    return path.relative_to(resolved).as_posix() if path.is_relative_to(resolved) else str(path)
