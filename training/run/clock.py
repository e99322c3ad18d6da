"""A machine's clock, told beside each time that is recorded, so that a reader sees whether the clock was set.

`<boot>/<zero>`: an id of the machine since it was started, and what its clock says of the moment when it was started.
That moment does not change, so of two records of one boot with another `zero`, the clock was set between them.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterable
from pathlib import Path

SET = 1.0  # seconds: a smaller difference is that of two readings
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def told() -> str:
    """Return what a record says of this machine's clock now."""
    boot = socket.gethostname()
    with contextlib.suppress(OSError):
        boot = _BOOT.read_text(encoding="ascii").strip()
    source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former counts while a machine sleeps
    return f"{boot[:63]}/{time.time() - time.clock_gettime(source):.3f}"


class Steady:
    """Times as if no clock had been set: those of a machine by its uptime, up to its last record."""

    def __init__(self, records: Iterable[tuple[float, str]]) -> None:
        self._last: dict[str, tuple[float, float]] = {}  # uptime and zero of a machine's last record
        self.set_by = 0.0  # seconds: the largest difference
        for moment, clock in records:
            boot, zero = _parts(clock)
            if boot and moment - zero >= self._last.get(boot, (-math.inf, 0.0))[0]:
                self._last[boot] = (moment - zero, zero)

    def __call__(self, moment: float, clock: str) -> float:
        """Return the time; one without a sound clock as it is."""
        boot, zero = _parts(clock)
        off = self._last[boot][1] - zero if boot in self._last else 0.0
        if abs(off) < SET:
            return moment
        self.set_by = max(self.set_by, abs(off))
        return moment + off


def _parts(clock: str) -> tuple[str, float]:
    """Return boot and zero; an empty boot for a text of another form."""
    boot, _, text = clock.rpartition("/")
    try:
        zero = float(text)
    except ValueError:
        return "", 0.0
    return (boot, zero) if math.isfinite(zero) else ("", 0.0)
