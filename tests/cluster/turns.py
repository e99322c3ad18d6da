"""Two processes of tests share the processors by turns where a test measures seconds.

A turnstile: who asks to be alone is let in before the other one's next test.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class Turns:
    """The turns of one run of tests, in its processes."""

    def __init__(self, directory: Path) -> None:
        """`directory` is the same for all processes of the run."""
        self._gate, self._room = directory / "gate.lock", directory / "room.lock"

    @contextmanager
    def test(self) -> Iterator[None]:
        """Hold what `alone` waits for while a test runs."""
        with ExitStack() as room:
            with _held(self._gate):
                room.enter_context(_held(self._room))
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the other process's test to end, and keep its next one waiting."""
        with _held(self._gate), _held(self._room):
            yield


@contextmanager
def _held(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
