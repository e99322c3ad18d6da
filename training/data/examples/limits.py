"""Bounds of time and memory for what a stranger wrote, such as a chat template with endless loops."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

INTERVAL = 1.0  # seconds between two looks at the clock


class TooLong(Exception):
    """The computation took longer than it may."""


@contextlib.contextmanager
def memory(size: int) -> Iterator[None]:
    """Let this process take at most `size` bytes more inside of the block; Linux only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + size
        resource.setrlimit(resource.RLIMIT_AS, (most if soft < 0 else min(most, soft), hard))
    except (OSError, ValueError):
        pass  # macOS
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Watchdog:
    """Raises TooLong in a thread that is inside of `limit` for longer than its seconds.

    The exception reaches Python code only, not a single call into a library. One sleeping thread watches all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[int, float] = {}
        self._started = False

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            self._deadlines[thread] = time.monotonic() + seconds
            if not self._started:
                threading.Thread(target=self._watch, daemon=True, name="watchdog").start()
                self._started = True
        try:
            yield
        finally:
            with self._lock:
                self._deadlines.pop(thread, None)

    def _watch(self) -> None:
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        while True:
            time.sleep(INTERVAL)
            with self._lock:
                late = [thread for thread, end in self._deadlines.items() if time.monotonic() > end]
                for thread in late:
                    del self._deadlines[thread]
                    raise_in(ctypes.c_ulong(thread), ctypes.py_object(TooLong))
