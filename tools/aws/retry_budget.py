"""How long others are waited for: what is waited for is shown, and asking AWS again has an end for a command.

botocore bounds each question by itself. A command that asks ten of them, of a network that swallows packets
or of a service that throttles, would still take minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tools.core import output

# Seconds that questions which came to nothing may take together; from then on each is asked once.
VAIN_SECONDS = 45.0
# A command that waits less says nothing; one that waits says so as often, and less often the longer it takes.
QUIET_SECONDS, SAY_SECONDS, MOST_SECONDS = 2.0, 5.0, 30.0
# Questions so close to one another are one piece of work.
PAUSE_SECONDS = 1.0


class Patience:
    """What is still waited for, of `whom`. `attempts` is how often botocore asks one question."""

    def __init__(self, whom: str, attempts: int = 1) -> None:
        self._whom = whom
        self._attempts = attempts
        self._vain = 0.0
        self._began = self._ended = self._busy_since = self._told = float("-inf")
        self._attempt, self._questions = 1, 0

    def watch(self, client: Any) -> None:
        """Follow the attempts of a client, and end them where the time is spent."""
        service = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-call.{service}", self._starts)
        client.meta.events.register_first(f"needs-retry.{service}", self._attempted)

    @contextmanager
    def during(self, asked: str) -> Iterator[None]:
        """Count a question, and say that it is waited for where that takes long."""
        self._starts()
        if self._began - self._ended > PAUSE_SECONDS:
            self._busy_since, self._questions = self._began, 0
        self._questions += 1
        over = threading.Event()
        # From another thread, for the one that asks is blocked.
        threading.Thread(target=self._tell, args=(asked, over), daemon=True).start()
        try:
            yield
        except Exception:
            self._vain += time.monotonic() - self._began
            raise
        finally:
            over.set()
            self._ended = time.monotonic()

    def _starts(self, **_: Any) -> None:
        self._began, self._attempt = time.monotonic(), 1

    def _attempted(
        self, response: Any, operation: Any, attempts: int, caught_exception: Any, **_: Any
    ) -> None:
        """Answer botocore's question whether to try again: no, by raising, where the time is spent."""
        from botocore.exceptions import ClientError

        self._attempt = attempts + 1
        if self._vain + time.monotonic() - self._began < VAIN_SECONDS:
            return
        if caught_exception is not None:
            raise caught_exception
        if response is not None and response[0].status_code >= 400:
            response[1].setdefault("ResponseMetadata", {})["RetryAttempts"] = attempts - 1
            raise ClientError(response[1], operation.name)

    def _tell(self, asked: str, over: threading.Event) -> None:
        """Print what is waited for until it is over."""
        while True:
            now = time.monotonic()
            often = min(max(SAY_SECONDS, (now - self._busy_since) / 4), MOST_SECONDS)
            due = max(self._busy_since + QUIET_SECONDS, self._told + often)
            if over.wait(max(0.0, due - now)):
                return
            self._told = time.monotonic()
            again = f", attempt {self._attempt} of {self._attempts}" if self._attempt > 1 else ""
            count, busy = output.count(self._questions, "question"), self._told - self._busy_since
            output.note(f"  waiting for {self._whom}: {asked}{again} ({count}, {busy:.0f} s)")
