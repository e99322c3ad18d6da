"""How much of the processors other programs use, sampled while something is measured."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

LIMIT = 0.05  # of all processors: a step or command with more beside it does not count
_EVERY = 0.4  # seconds
_HERTZ, _PROCESSORS = os.sysconf("SC_CLK_TCK"), os.cpu_count() or 1


class Meter:
    """Samples the share of all processors that processes outside this one's tree use."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._before = (time.time(), _busy(), _own())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def foreign(self, start: float, end: float) -> float:
        """Return the mean share of the samples that overlap a time; 1 if there is none."""
        over = [share for at, share in self.samples if at > start and at - _EVERY < end]
        return statistics.fmean(over) if over else 1.0

    def clean(self, start: float, end: float) -> bool:
        return self.foreign(start, end) <= LIMIT

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        now = (time.time(), _busy(), _own())
        seconds, busy, own = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        if seconds > 0:
            self.samples.append((now[0], max(0.0, busy - own) / (seconds * _PROCESSORS)))


def _busy() -> float:
    """Processor seconds that this machine has spent, and those that its host took from it."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / _HERTZ


def _own() -> float:
    """Processor seconds of this process, its descendants, and those that they have waited for."""
    return sum(map(_seconds, _tree(os.getpid())))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # ended meanwhile
            continue
        for child in found:
            yield from _tree(int(child))


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _HERTZ
