"""Progress lines: one a second at most, at least one while a long call runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

INTERVAL = 1.0
_Result = TypeVar("_Result")


class Reporter:
    """Says what is going on through `tell`, a function that takes one line of text."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Tell `text` now."""
        self._last = time.monotonic()
        self._tell(text)

    def tick(self, text: Callable[[], str]) -> None:
        """Tell `text()` when nothing has been told for INTERVAL seconds."""
        if time.monotonic() - self._last >= INTERVAL:
            self.say(text())

    def during(
        self, call: Callable[[], _Result], text: Callable[[], str], stop: Callable[[], None]
    ) -> _Result:
        """Run `call` in a thread and tell `text()` every INTERVAL seconds until it returns; its result.

        For calls into native code that take long and let other threads run. An interrupt of the caller
        invokes `stop`, then waits for the thread: one inside native code must not outlive the interpreter.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            future = pool.submit(call)
            try:
                while not wait([future], timeout=INTERVAL / 4).done:
                    self.tick(text)
            except BaseException:
                stop()
                raise
            return future.result()
