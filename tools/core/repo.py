"""The checkout: its directory, its paths in messages, and the nearest name to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def root() -> Path:
    """Return the checkout that this package was loaded from."""
    return Path(__file__).resolve().parents[2]


def local() -> Path:
    """Return the directory that takes the place of the claim `trainyard` on this machine."""
    return root() / "local"


def nearest(text: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name most like `text`, or None if no name is similar enough."""
    matches = difflib.get_close_matches(text, list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def shown(path: Path) -> str:
    """Return `path` relative to the checkout if it is below it."""
    try:
        return path.relative_to(root()).as_posix()
    except ValueError:
        return str(path)
