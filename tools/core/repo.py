"""The checkout: its directory, its paths in messages, and the nearest name to a misspelt one."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from pathlib import Path

COMPARED, LONGEST = 300, 256  # names, and characters of one: the comparison is slow


def root() -> Path:
    """Return the checkout that this package was loaded from."""
    return Path(__file__).resolve().parents[2]


def local() -> Path:
    """Return the directory that takes the place of the claim `trainyard` on this machine."""
    return root() / "local"


def nearest(text: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name most like `text`, or None if no name is similar enough."""
    some = [name for name in itertools.islice(names, COMPARED) if len(name) <= LONGEST]
    matches = difflib.get_close_matches(text, some, n=1, cutoff=cutoff) if len(text) <= LONGEST else []
    return matches[0] if matches else None


def shown(path: Path) -> str:
    """Return `path` relative to the checkout if it is below it."""
    try:
        return path.relative_to(root()).as_posix()
    except ValueError:
        return str(path)
