"""Progress lines: one in a while, and also during a long call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from training.run.progress import line_seconds

POLL = 0.25  # seconds between two looks at work that runs
_Result = TypeVar("_Result")


class Reporter:
    """Reports progress through `tell`, a function that takes one line of text."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._interval = tell, line_seconds()
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Report `text` now."""
        self._last = time.monotonic()
        self._tell(text)

    def tick(self, text: Callable[[], str]) -> None:
        """Report `text()` if nothing was reported for the time between two lines."""
        if time.monotonic() - self._last >= self._interval:
            self.say(text())

    def during(self, call: Callable[[], _Result], text: Callable[[], str], stop: Callable[[], None]) -> _Result:
        """Run `call` in a thread, report `text()` once in a while, and return the call's result.

        This is for long calls into native code that let other threads run. An interrupt of the caller calls
        `stop` and waits for the thread: a thread inside native code must not outlive the interpreter.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            future = pool.submit(call)
            try:
                while not wait([future], timeout=POLL).done:
                    self.tick(text)
            except BaseException:
                stop()
                raise
            return future.result()
