"""The run directory: its files, and how each is written so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class RunDir:
    """Paths of one run: run.json is written once, metrics.jsonl grows, report.json exists when finished.

    end.json says how the last try of any pod ended, and why.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.run = self.path / "run.json"
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.heldout = self.path / "heldout.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.logs = self.path / "logs"
        self.failures = self.path / "failures"
        self.heartbeat = self.path / "heartbeat"
        self.end = self.path / "end.json"
        self.report = self.path / "report.json"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object is needed")
    return value
