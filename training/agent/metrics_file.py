"""Appends records to a run's metrics.jsonl, in the trainer's format."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append one line for each record. JSON has no nan: such a number becomes its name. Raises OSError."""
    lines = [json.dumps({key: _plain(value) for key, value in record.items()}) for record in records]
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        torn = file.seek(0, os.SEEK_END) and _last_byte(file.fileno()) != b"\n"  # its writer was killed
        file.write(("\n" * bool(torn) + "\n".join(lines) + "\n").encode())


def _last_byte(descriptor: int) -> bytes:
    return os.pread(descriptor, 1, os.fstat(descriptor).st_size - 1)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
