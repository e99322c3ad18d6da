"""The commit that the running code is of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

VARIABLE = "TRAINYARD_COMMIT"  # set in images, which have no clone


def commit() -> str | None:
    """Return the commit, with `-dirty` behind it if files differ; None if this is neither an image nor a clone."""
    if named := os.environ.get(VARIABLE):
        return named
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
