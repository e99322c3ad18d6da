"""What a start may touch: a copy-on-write view of the file system, or a copy of the working directory."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Dict, List, Tuple, Union

from ..plan import Plan, Start
from .copied import Copied
from .overlay import Overlay, Unavailable
from .tree import remove_tree

Command = Tuple[List[str], Dict[str, str]]
View = Union[Overlay, Copied]
_STATE = "view.json"


def begin(plan: Plan, start: Start, out: Path, commands: list[Command], log: int) -> View:
    """Start the command of each node in a new view, and return the view.

    `log` is a descriptor for what the commands print. The view holds what `start.source` kept. Without
    overlay or namespaces it is a copy of the working directory: its `note` says why. Raises OSError.
    """
    source = _state(out / start.source) if start.source else None
    reason = ""
    for base in _bases(out, source):
        state = Path(tempfile.mkdtemp(prefix=start.name + "-", dir=str(base)))
        _remember(out / start.name, state)
        kept = source / "kept" if source else None
        try:
            return Overlay(plan, out / start.name, state, kept, commands, log)
        except Unavailable as problem:
            reason = str(problem)
            remove_tree(state)
    state = Path(tempfile.mkdtemp(prefix=start.name + "-", dir=str(_own(out))))
    _remember(out / start.name, state)
    return Copied(plan, out / start.name, state, source, commands, log, reason)


def _own(out: Path) -> Path:
    path = out / "views"
    path.mkdir(exist_ok=True)
    return path


def _bases(out: Path, source: Path | None) -> list[Path]:
    """Return the places for what a view writes: in a container the file system of the first may not do."""
    if source is not None:
        return [source.parent] if (source / "kept").exists() else []
    others = [Path(one) for one in ("/var/tmp", "/dev/shm") if os.access(one, os.W_OK)]
    return [_own(out), *others]


def _remember(directory: Path, state: Path) -> None:
    (directory / _STATE).write_text(json.dumps(str(state)), encoding="utf-8")


def _state(directory: Path) -> Path:
    return Path(json.loads((directory / _STATE).read_text(encoding="utf-8")))


def remove(directory: Path) -> None:
    """Remove what the view of a start wrote, with what it kept. `directory` has the records of the start."""
    try:
        state = _state(directory)
    except (OSError, ValueError):
        return
    remove_tree(state)
    (directory / _STATE).unlink()
