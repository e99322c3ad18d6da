"""Reports long waits, and limits the time that the failed requests of one command may take together.

botocore limits each request by itself. Without a limit for all of them, a command that sends ten requests
into a network that drops packets, or to a service that throttles, would take minutes.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tools.core import output

# Seconds that failed requests may take together. After that, no request is retried.
FAILED_SECONDS = 45.0
# A wait is reported after QUIET_SECONDS, then every SAY_SECONDS, and less often the longer it takes.
QUIET_SECONDS, SAY_SECONDS, MOST_SECONDS = 2.0, 5.0, 30.0
# Requests with shorter pauses between them count as one wait.
PAUSE_SECONDS = 1.0


class Waiting:
    """Reports on standard error what a command is waiting for."""

    def __init__(self, whom: str) -> None:
        self._whom = whom
        self._busy_since = self._ended = self._told = float("-inf")
        self._requests = 0

    @contextmanager
    def during(self, request: str) -> Iterator[None]:
        now = time.monotonic()
        if now - self._ended > PAUSE_SECONDS:
            self._busy_since, self._requests = now, 0
        self._requests += 1
        over = threading.Event()
        # The calling thread is blocked by the request, so another one reports.
        threading.Thread(target=self._report, args=(request, over), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            self._ended = time.monotonic()

    def _report(self, request: str, over: threading.Event) -> None:
        while True:
            now = time.monotonic()
            interval = min(max(SAY_SECONDS, (now - self._busy_since) / 4), MOST_SECONDS)
            due = max(self._busy_since + QUIET_SECONDS, self._told + interval)
            if over.wait(max(0.0, due - now)):
                return
            self._told = time.monotonic()
            count, busy = output.count(self._requests, "request"), self._told - self._busy_since
            output.note(f"  waiting for {self._whom}: {request}{self._attempt()} ({count}, {busy:.0f} s)")

    def _attempt(self) -> str:
        return ""


class RetryBudget(Waiting):
    """Ends the retries of botocore clients when the time for failed requests is spent."""

    def __init__(self, whom: str, attempts: int) -> None:
        super().__init__(whom)
        self._attempts = attempts
        self._number = 1
        self._failed = self._began = 0.0

    def watch(self, client: Any) -> None:
        service = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-call.{service}", self._starts)
        client.meta.events.register_first(f"needs-retry.{service}", self._failed_once)

    @contextmanager
    def during(self, request: str) -> Iterator[None]:
        self._starts()
        try:
            with super().during(request):
                yield
        except Exception:  # whatever ended the request took its time; it is raised again
            self._failed += time.monotonic() - self._began
            raise

    def _starts(self, **_: Any) -> None:
        self._began, self._number = time.monotonic(), 1

    def _failed_once(self, response: Any, operation: Any, attempts: int, caught_exception: Any, **_: Any) -> None:
        """Raise the error of the attempt, instead of a retry, when the time is spent."""
        from botocore.exceptions import ClientError

        self._number = attempts + 1
        if self._failed + time.monotonic() - self._began < FAILED_SECONDS:
            return
        if caught_exception is not None:
            raise caught_exception
        if response is not None and response[0].status_code >= 400:
            response[1].setdefault("ResponseMetadata", {})["RetryAttempts"] = attempts - 1
            raise ClientError(response[1], operation.name)

    def _attempt(self) -> str:
        return f", attempt {self._number} of {self._attempts}" if self._number > 1 else ""
