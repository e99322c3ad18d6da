"""hadolint's own findings, where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60


@dataclass(frozen=True)
class Note:
    """One finding of hadolint. `level` is error, warning, info or style."""

    code: str
    level: str
    line: int
    message: str


def notes(dockerfile: Path) -> list[Note] | None:
    """Return hadolint's findings on a Dockerfile, or None where it is not installed or does not run."""
    beside = Path(sys.executable).parent / "hadolint"
    program = str(beside) if beside.is_file() else shutil.which("hadolint")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--no-fail", "-f", "json", str(dockerfile)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return [Note(one["code"], one["level"], int(one["line"]), one["message"]) for one in found]
