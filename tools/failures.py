"""The trainer's failure records of one run, and which of them is the cause."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PERMANENT = frozenset({"config", "data", "nan"})
CONSEQUENCES = frozenset({"lost peer", "drained"})


@dataclass(frozen=True)
class Failure:
    """One rank's record: what class of failure, where and when (`time` in seconds since the epoch)."""

    kind: str
    rank: int
    host: str
    step: int | None
    message: str
    time: float
    path: Path


def since(run_directory: Path, start: float) -> list[Failure]:
    """Return the records that were written at `start` (seconds since the epoch) or later, in order."""
    found = []
    for path in (run_directory / "failures").glob("*.json"):
        moment = path.name.partition("-")[0]
        if moment.isdigit() and int(moment) >= int(start * 1000):
            record = _read(path)
            if record is not None:
                found.append(record)
    return sorted(found, key=lambda failure: failure.time)


def cause(failures: list[Failure]) -> Failure | None:
    """Return the first failure that is not the consequence of another's, else the first of all."""
    own = [failure for failure in failures if failure.kind not in CONSEQUENCES]
    return next(iter(own or failures), None)


def _read(path: Path) -> Failure | None:
    """Return one record, or None for one that is not whole (its writer was killed)."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Failure(
            kind=str(record["class"]),
            rank=int(record["rank"]),
            host=str(record["host"]),
            step=record.get("step"),
            message=str(record["message"]),
            time=float(record["time"]),
            path=path,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
