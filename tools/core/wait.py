"""Waiting for something outside this process: one loop, bounded, that reports while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    probe: Callable[[], T | None],
    seconds: float,
    every: float = 2.0,
    report: Callable[[float], None] | None = None,
) -> T | None:
    """Call `probe` every `every` seconds until it returns a true value, for at most `seconds`.

    `report` gets the seconds waited so far. The last probe runs at the deadline.

    Returns:
        The first true value, or None when time is up.
    """
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        result = probe()
        if result:
            return result
        if waited >= seconds:
            return None
        if report:
            report(waited)
        time.sleep(min(every, max(0.0, seconds - (time.monotonic() - start))))
