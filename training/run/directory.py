"""The run directory: its files, and how to write one so that a reader never sees half of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.run.files import open_regular, read_bounded

MOUNTED = "run"  # the last part of the mount of a job's own run in base/pytorchjob
LONGEST_JSON = 4 << 20  # bytes of run.json, a heartbeat, a failure record and the like
_TAIL = 65536  # bytes; a line of metrics is far shorter


class RunDir:
    """Paths of one run: run.json is written once, metrics.jsonl grows, report.json follows the last step.

    end.json says how the last attempt of any pod ended, and why.
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
        self.skipped = (
            self.path / "skipped.jsonl"
        )  # ledger of data that nothing was learned of, by train.on_nan and on_spike
        self.end = self.path / "end.json"
        self.report = self.path / "report.json"
        self.track = self.path / "track"  # what each tracker has of this run
        self.data = self.path / "data"  # datasets that were not prepared for all runs

    @property
    def name(self) -> str:
        """The run's name, which is its job's; in a pod the directory of its own run is mounted as `run`."""
        name = self.path.resolve().name
        return os.environ.get("JOB_NAME", name) if name == MOUNTED else name

    def other(self, name: str) -> RunDir:
        """Return another run: in `runs` beside this one, where a pod mounts it, or else beside this one."""
        around = self.path.resolve().parent
        mounted = around / "runs" / name
        return RunDir(mounted if mounted.is_dir() else around / name)

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    def last_record(self) -> dict[str, Any]:
        """Return the newest step's whole line of metrics.jsonl; empty without one."""
        return (last_records(self.metrics) or [{}])[-1]


def last_records(path: Path, most: int = _TAIL, lines: int = 0) -> list[dict[str, Any]]:
    """Return the JSON objects in the last `most` bytes of a file of lines, in its order; empty without the file.

    With `lines` only that many of the last lines are read.
    """
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            found = (file.read(most) or b"").splitlines()[-lines:]
    except OSError:
        return []
    return objects(found)


def objects(lines: Iterable[str | bytes]) -> list[dict[str, Any]]:
    """Return the JSON objects among lines; a killed process leaves half of one."""
    records = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:  # does not follow a link that another process has made
            json.dump(value, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object; OSError for a link, a FIFO or a large file, ValueError for other content."""
    try:
        value = json.loads(read_bounded(path, LONGEST_JSON))
    except RecursionError:
        raise ValueError(f"{path}: its values are nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object is needed")
    return value


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in flat(inner, f"{prefix}.{key}" if prefix else key).items()}


def why_not_new(directory: Path) -> str | None:
    """Why a directory cannot be created at this path, or is not empty; None if it can."""
    try:
        if directory.is_dir() and any(directory.iterdir()):
            return f"{directory} is not empty; name a directory that does not exist yet"
        if os.path.lexists(directory) and not directory.is_dir():
            return f"{directory} is not a directory; name one that does not exist yet"
        parent = next(path for path in directory.resolve().parents if path.exists())
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        return f"cannot write {directory}: {getattr(error, 'strerror', None) or error}"
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return None
    return f"cannot write {directory}: {parent} is not a directory that this user can write"
