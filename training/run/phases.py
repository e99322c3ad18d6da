"""When each rank was in which phase: `<run>/heartbeat/rank-00000.phases.jsonl`, a line for each change.

A heartbeat says what a rank does now. These lines say what it did, over all attempts of the run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.run.files import open_regular
from training.run.heartbeat import PHASES

_CHUNK = 1 << 20  # bytes that one reading takes at most
_LONGEST = 4096  # bytes of a line; of a longer one, which no heartbeat writes, the rest is dropped


@dataclass(frozen=True)
class Change:
    """A rank's change to a phase at `time`, in seconds since the epoch, in an attempt of its pod.

    `clock` is what `training.run.clock` tells of the machine then; empty if that is unknown.
    """

    time: float
    phase: str
    step: int | None
    attempt: str
    clock: str = ""


class Reader:
    """Reads the lines of one file that were added since the last reading."""

    def __init__(self, path: Path) -> None:
        self._path, self.offset, self._half = path, 0, b""
        self.damaged = 0  # lines of another form

    def new(self) -> Iterator[Change]:
        """Yield the changes since the last call; lines of another form are left out. Raises OSError."""
        with open_regular(self._path) as file:
            if os.fstat(file.fileno()).st_size < self.offset:  # the run began again
                self.offset, self._half = 0, b""
            file.seek(self.offset)
            added = file.read(_CHUNK) or b""
        self.offset += len(added)
        *lines, half = (self._half + added).split(b"\n")
        self._half = half[:_LONGEST]
        changes = [change(line) for line in lines]
        self.damaged += changes.count(None)
        yield from filter(None, changes)


def change(line: str | bytes) -> Change | None:
    """Return what a line says, None for one of another form."""
    try:
        values: Any = json.loads(line)
        found = Change(
            float(values["time"]), values["phase"], values["step"], values["attempt"], values.get("clock", "")
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    known = found.phase in PHASES if isinstance(found.phase, str) else False
    step_is_good = found.step is None or (type(found.step) is int and 0 <= found.step < 2**63)
    texts_are_good = isinstance(found.attempt, str) and isinstance(found.clock, str)
    return found if known and step_is_good and texts_are_good and math.isfinite(found.time) else None
