"""Follows what the processes of a start record while they run, and keeps their log within bounds."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from pathlib import Path

HEAD_BYTES = 8 << 20
TAIL_BYTES = 8 << 20
_CHUNK = 65536
_STEP = re.compile(rb'^\{"event": "step", "step": (\d+),', re.MULTILINE)
_DONE = re.compile(rb'^\{"event": "end", "step": \d+, "reason": "steps"', re.MULTILINE)
_FAULT = re.compile(rb'^\{"event": "injected", .{0,4096}?"rank": (\d+),', re.MULTILINE)
_WORLD = re.compile(rb'^\{"event": "begin", "rank": \d+, "local_rank": \d+, "world": (\d+),', re.MULTILINE)


class Watch:
    """The highest step and the ranks that a fault has hit, by the files of one start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}
        self.step = 0
        self.ranks: set[str] = set()
        self.world = 1  # the ranks that a launcher started, as far as one of them has said so
        self.hit: set[int] = set()
        self.done: set[str] = set()  # ranks that the probe ended after the wished steps
        self.bytes = 0

    def look(self) -> None:
        """Read what is new. Half a line at the end is left for the next time."""
        self.bytes = 0
        for path in self._directory.glob("rank-*-*.jsonl"):
            self.ranks.add(path.name.split("-")[1])
            try:
                size = path.stat().st_size
                self.bytes += size
                if size > self._read.get(path.name, 0):
                    self._take(path)
            except OSError:
                continue

    def _take(self, path: Path) -> None:
        begin = self._read.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read(64 << 20)
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path.name] = begin + len(whole)
        self.step = max([self.step, *(int(found[1]) for found in _STEP.finditer(whole))])
        self.world = max([self.world, *(int(found[1]) for found in _WORLD.finditer(whole))])
        if _DONE.search(whole):
            self.done.add(path.name.split("-")[1])
        self.hit.update(int(found[1]) for found in _FAULT.finditer(whole))


class Log:
    """Copies what the command prints to a file: its first and its last bytes, what is between is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader, self.descriptor = os.pipe()
        self._tail: deque[bytes] = deque()
        self._held = self._left_out = 0
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        written = 0
        with self._path.open("wb") as file:
            while True:
                chunk = os.read(self._reader, _CHUNK)
                if not chunk:
                    break
                if written < HEAD_BYTES:
                    written += file.write(chunk)
                    file.flush()
                else:
                    self._keep(chunk)
            if self._left_out:
                file.write(b"\n... %d bytes are left out ...\n" % self._left_out)
            file.writelines(self._tail)

    def _keep(self, chunk: bytes) -> None:
        self._tail.append(chunk)
        self._held += len(chunk)
        while self._held > TAIL_BYTES:
            first = len(self._tail.popleft())
            self._held -= first
            self._left_out += first

    def close(self) -> None:
        """Read the rest. Call it when no process of the start is alive."""
        os.close(self.descriptor)
        self._thread.join(10.0)
        if not self._thread.is_alive():
            os.close(self._reader)
