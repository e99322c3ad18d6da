"""How much of a source has arrived, in one line."""

from __future__ import annotations

import threading
import time

from training.stage.item import Say

_EVERY = 2.0  # seconds


class Progress:
    """Counts bytes from several threads. `fetched` are those that this process brought."""

    def __init__(self, total: int, here: int, count: int, files: int) -> None:
        self._total, self._here, self._count = total, here, count
        self.files = files
        self.phase = ""
        self.fetched = 0
        self._lock = threading.Lock()
        self._began = self._said = time.monotonic()

    def more(self, count: int) -> None:
        with self._lock:
            self.fetched += count

    def report(self, say: Say) -> None:
        """Say how much has arrived, every two seconds at most."""
        now = time.monotonic()
        if now - self._said < _EVERY:
            return
        self._said = now
        done = self._here + self.fetched
        rate = self.fetched / (now - self._began)
        left = f", {_duration((self._total - done) / rate)} left" if rate and done < self._total else ""
        say(
            f"{done / 2**20:,.1f} of {self._total / 2**20:,.1f} MiB, {self.files:,} of {self._count:,} files, "
            f"{rate / 2**20:,.1f} MiB/s{left}{f', {self.phase}' if self.phase else ''}"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min" if minutes else f"{rest} s"
