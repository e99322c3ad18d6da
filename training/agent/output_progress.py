"""The progress of a script that says nothing but what it prints: its steps, and when it falls silent."""

from __future__ import annotations

import time

from training.run import heartbeat
from training.run.hang_limits import SLOWER, Limits
from training.run.trainer_logs import LONGEST, Steps, Values

_LONGEST_JSON = 1 << 16  # characters of a line of JSON


class OutputProgress:
    """The steps in the output of one script, and the time since the last one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = Steps()
        self._ended: list[Values] = []
        self.step: int | None = None  # the newest that the output names
        self.forget()

    def forget(self) -> None:
        """Wait for a first step again: the script's processes were killed, and may start anew."""
        self.count = 0  # steps seen
        self.longest = 0.0  # seconds between two of them
        self._step_at = self._line_at = time.monotonic()

    def take(self, text: str) -> None:
        """Read a line, or a part of one that a progress bar has overwritten."""
        now = time.monotonic()
        self._line_at = now
        ended = self._steps.take(text[: _LONGEST_JSON if text.startswith("{") else LONGEST], time.time())
        if ended is not None:
            self._ended.append(ended)
        step = self._steps.last.get("step")
        if step is None or step == self.step:
            return
        if self.count:
            self.longest = max(self.longest, now - self._step_at)
        self.step, self._step_at = step, now
        self.count += 1

    def records(self, *, all_of_them: bool = False) -> list[Values]:
        """Return the steps since the last call that no later line can change, or all of them."""
        ended, self._ended = self._ended, []
        if all_of_them and self._steps.last:
            ended.append(self._steps.last)
        return [record for record in ended if "step" in record]

    def late(self) -> tuple[float, float] | None:
        """Return how long there was no new step, and the limit, in seconds; None while that is not a hang.

        A script that prints other lines, as while it evaluates, gets the long limit. One that never named a
        step is never late.
        """
        if not self._limits.step or not self.count:
            return None
        now = time.monotonic()
        settled = self.count >= heartbeat.SETTLED
        silent, since = now - self._line_at, now - self._step_at
        step_limit = max(self._limits.step if settled else self._limits.long, SLOWER * self.longest)
        long_limit = max(self._limits.long, step_limit)
        if silent > step_limit:
            return silent, step_limit
        return (since, long_limit) if since > long_limit else None
