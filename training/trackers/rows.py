"""What a run has logged and a tracker does not have yet: rows of its logs, and its checkpoints."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from training.checkpoint.layout import MANIFEST, committed_steps, step_name
from training.run.directory import RunDir, objects, read_json, write_json
from training.run.files import open_regular

SETTINGS = "settings.json"  # in the run's directory `track`: the section `track`, and the run's name
MOST = 100  # rows of one request: MLflow takes 1,000 values
_SHOWN = {"loss", "lr", "grad_norm", "tokens_per_s", "mfu", "memory_gib", "step_s", "data_wait_s"}
_PART_OF_LOSS = "_loss"
_CHUNK = 1 << 20  # bytes of a log that are read at once; a line is far shorter


@dataclass(frozen=True)
class Row:
    """Values of one step by their names, and the time in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass
class Sent:
    """What a tracker has of a run, kept in a file: its own id of the run, and the last step of each source."""

    run: str = ""  # its name
    id: str = ""
    url: str = ""
    described: bool = False  # whether it has the configuration
    steps: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, run: str) -> Sent:
        """Return what the tracker has of the run of this name: nothing if its directory is a copy of another run's."""
        with contextlib.suppress(OSError, ValueError):
            found = read_json(path)
            kept = {one.name: found[one.name] for one in fields(cls) if one.name in found}
            sound = all(type(value) is type(getattr(cls(), name)) for name, value in kept.items())
            if sound and kept.get("run", run) == run:
                return cls(**kept | {"run": run})
        return cls(run)

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))


class Source:
    """Rows of a run that a tracker does not have."""

    def __init__(self, step: int) -> None:
        self.step = step  # the last one that was sent

    def rows(self) -> list[Row]:
        """Return new rows in their order, not all of them at once."""
        raise NotImplementedError

    def accept(self, row: Row) -> None:
        """Take the rows up to this one as sent."""
        self.step = row.step


class Checkpoints(Source):
    """Committed checkpoints; the value is the step."""

    def __init__(self, directory: Path, step: int) -> None:
        super().__init__(step)
        self._directory = directory

    def rows(self) -> list[Row]:
        found = []
        for step in committed_steps(self._directory):
            with contextlib.suppress(OSError):
                written = (self._directory / step_name(step) / MANIFEST).stat().st_mtime
                found += [Row(step, written, {"checkpoint": float(step)})] if step > self.step else []
        return found


class Log(Source):
    """A file of lines that grows. The trainer replaces it by a shorter one when it goes back to a checkpoint."""

    def __init__(self, path: Path, step: int, names: Callable[[str], str]) -> None:
        super().__init__(step)
        self._path, self._names = path, names
        self._inode = self._offset = 0
        self._time, self._again = 0.0, False

    def rows(self) -> list[Row]:
        with contextlib.suppress(OSError), open_regular(self._path) as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._again = self._inode != 0  # its last steps will be done again, with other values
                self._inode, self._offset = found.st_ino, 0
            while True:
                file.seek(self._offset)
                part = file.read(_CHUNK) or b""
                whole = part[: part.rfind(b"\n") + 1]
                if rows := [row for row in self._parsed(whole) if self._is_new(row)]:
                    return rows
                if not whole and len(part) < _CHUNK:
                    return []
                self._offset += len(whole) or len(part)
        return []

    def accept(self, row: Row) -> None:
        super().accept(row)
        self._time, self._again = row.time, False

    def _is_new(self, row: Row) -> bool:
        return row.time > self._time if self._again else row.step > self.step

    def _parsed(self, lines: bytes) -> Iterator[Row]:
        for record in objects(lines.splitlines()):
            step, moment = record.get("step"), _number(record.get("time"))
            if type(step) is int and moment is not None:
                named = ((self._names(key), _number(value)) for key, value in record.items())
                values = {name: value for name, value in named if name and value is not None}
                yield Row(step, moment, values)


def sources(run: RunDir, sent: Mapping[str, int]) -> dict[str, Source]:
    """Return a run's sources by name; `sent` has the last steps that the tracker has."""
    before = {name: sent.get(name, -1) for name in ("steps", "heldout", "checkpoints")}
    return {
        "steps": Log(run.metrics, before["steps"], _name_of_step),
        "heldout": Log(run.heldout, before["heldout"], lambda key: "heldout_loss" if key == "loss" else ""),
        "checkpoints": Checkpoints(run.checkpoints, before["checkpoints"]),
    }


def _name_of_step(key: str) -> str:
    return key if key in _SHOWN or (key.endswith(_PART_OF_LOSS) and len(key) <= 60) else ""


def _number(value: Any) -> float | None:
    """Return a value as a finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        number = float(value)
        return number if math.isfinite(number) else None
    return None
