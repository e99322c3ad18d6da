"""Waiting for something outside this process: one loop, bounded, that reports while it waits."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Say = Callable[[str], None]  # takes a line of progress


def until(
    probe: Callable[[], T | None], seconds: float, every: float = 2.0, report: Callable[[float], None] | None = None
) -> T | None:
    """Call `probe` every `every` seconds until it returns a true value; return that, or None after `seconds`.

    `report` gets the seconds waited so far. The last probe runs at the deadline.
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


def settled(
    probe: Callable[[], T],
    is_settled: Callable[[T], bool],
    seconds: float,
    every: float = 2.0,
    report: Callable[[float], None] | None = None,
) -> T:
    """Call `probe` as `until` does, until its value `is_settled` or time is up, and return the last value."""
    values: list[T] = []

    def is_over() -> bool:
        values[:] = [probe()]
        return is_settled(values[0])

    until(is_over, seconds, every, report)
    return values[0]


def sparing(say: Say, every: float = 2.0) -> Say:
    """Return a function that passes a text on to `say`, but only once in `every` seconds."""
    last = time.monotonic()

    def passed_on(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > every:
            last = time.monotonic()
            say(text)

    return passed_on
