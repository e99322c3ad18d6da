"""How far a run has come, read from its directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

TAIL = 65536  # bytes; a line of metrics is far shorter


def last_step(run_directory: Path) -> int | None:
    """Return the last step in a run's metrics, or None."""
    try:
        with (run_directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def newest_checkpoint(run_directory: Path) -> Path | None:
    """Return the newest committed checkpoint's directory, or None."""
    found = sorted((run_directory / "checkpoints").glob("step-*/MANIFEST.json"))
    found = [path for path in found if path.parent.name.removeprefix("step-").isdigit()]
    return found[-1].parent if found else None
