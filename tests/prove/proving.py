"""Run the real `yard prove` on scripts and read its verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.parts import venv
from tests.prove.planted import HERE

LOCK = HERE / "requirements.lock"
YARD = Path(sys.executable).parent / "yard"


@dataclass
class Answer:
    """What a proof said. `rows` has one verdict for each claim."""

    code: int
    rows: list[dict[str, Any]]
    errors: str = ""
    found: dict[str, str] = field(default_factory=dict)  # `claim/finding` -> the state of its claim

    def __post_init__(self) -> None:
        self.found = {f"{row['claim']}/{name}": row["verdict"] for row in self.rows for name in row["findings"]}

    def states(self) -> dict[str, str]:
        return {row["claim"]: row["verdict"] for row in self.rows}


def programs(script: str) -> Path | None:
    """Return the directory of the `python` and `torchrun` for a script. None: their environment does not exist."""
    if script != "lightning_script":
        return Path(sys.executable).parent
    python = venv.python(LOCK)
    return python.parent if python else None


def prove(directory: Path, command: list[str], *options: str, path: Path, timeout: float = 900) -> Answer:
    """Run `yard prove` in a directory. `path` comes first on PATH. Ends it after `timeout` seconds."""
    words = [str(YARD), "prove", "--json", *options, "--", *command]
    environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    try:
        rows = json.loads(done.stdout)["claims"]
    except (ValueError, KeyError):
        rows = []
    return Answer(done.returncode, rows, done.stderr)
