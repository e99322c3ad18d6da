"""Files that another machine sends: `yard stage` asks a pod over standard input and output.

The sender's first line is JSON: the source, and name, size and version of each file. The receiver answers
with one line, the names and offsets that it wants, in order. Then come, for each of them, the bytes from the
offset to the file's size, and a line with the SHA-256 of the whole file.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from training.data.errors import DataError
from training.data.retries import GaveUp
from training.stage.item import Body, Item, safe_name

LONGEST_LINE = 1 << 28  # bytes of the list of files
SILENCE = 120.0  # seconds without a byte
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Sender:
    """The other end of this process's standard input and output."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""

    def announced(self) -> tuple[str, list[Item]]:
        """Return the source and the items that the sender has. Raises DataError, GaveUp."""
        try:
            head = json.loads(self._line())
            source = str(head["source"])
            files = [(str(name), int(size), str(version)) for name, size, version in head["files"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError("the sender's first line is not a list of files") from None
        if any(size < 0 for _, size, _ in files):
            raise DataError("the sender announces a file of negative size")
        items = [
            Item(safe_name(name, source), size, version, self._opener(name, size))
            for name, size, version in sorted(files)
        ]
        return source, items

    def want(self, needs: list[tuple[Item, int]]) -> None:
        """Ask for items from their offsets on, in this order."""
        sys.stdout.write(json.dumps({"want": [[item.name, offset] for item, offset in needs]}) + "\n")
        sys.stdout.flush()

    def _opener(self, name: str, size: int) -> Callable[[int, threading.Event], Body]:
        return lambda offset, _stop: _Sent(self, name, size - offset)

    def _line(self) -> bytes:
        while b"\n" not in self._kept:
            if len(self._kept) > LONGEST_LINE:
                raise DataError("the sender's list of files is too long")
            self._kept += self._more()
        line, _, self._kept = self._kept.partition(b"\n")
        return line

    def read(self, size: int) -> bytes:
        """Return some of the next `size` bytes."""
        data = self._kept or self._more()
        self._kept = data[size:]
        return data[:size]

    def digest(self, name: str) -> str:
        """Return the SHA-256 behind a file's bytes."""
        line = self._line().decode("ascii", "replace")
        if not _DIGEST.fullmatch(line):
            raise DataError(f"{name}: it changed while it was sent")
        return line

    def _more(self) -> bytes:
        ready, _, _ = select.select([self._stream], [], [], SILENCE)
        data = os.read(self._stream.fileno(), 1 << 20) if ready else b""
        if not data:
            raise GaveUp("the sender went away")
        return data


class _Sent:
    """The bytes of one file in the stream. At its end `sha256` is what the sender computed."""

    def __init__(self, sender: Sender, name: str, size: int) -> None:
        self._sender, self._name, self._left = sender, name, size
        self.sha256: Any = sender.digest(name) if not size else None

    def read(self, size: int) -> bytes:
        data = self._sender.read(min(size, self._left)) if self._left else b""
        self._left -= len(data)
        if data and not self._left:
            self.sha256 = self._sender.digest(self._name)
        return data

    def close(self) -> None:
        pass
