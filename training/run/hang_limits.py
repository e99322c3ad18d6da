"""How long a rank may stay silent before it is late. The pod's guard and `yard job why` both use this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from training.run import heartbeat
from training.run.heartbeat import Beat

STEP_VARIABLE, LONG_VARIABLE = "TRAINYARD_HANG_SECONDS", "TRAINYARD_LONG_SECONDS"
STEP_SECONDS, LONG_SECONDS = 300.0, 3600.0
SLOWER = 5.0  # a rank is late after this many times its own longest gap, if that is longer than the limit
_STEPS = ("training", "evaluating")


@dataclass(frozen=True)
class Limits:
    """Seconds a rank may stay silent: `step` between two steps, `long` in a phase that is one long step.

    The first steps of a phase also get `long`: they compile code and open connections. `step` 0 switches the
    guard off.
    """

    step: float = STEP_SECONDS
    long: float = LONG_SECONDS

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Limits:
        """Read the limits from the environment. Raises ValueError with the variable's name."""
        return cls(
            _seconds(environment, STEP_VARIABLE, STEP_SECONDS),
            _seconds(environment, LONG_VARIABLE, LONG_SECONDS),
        )

    def for_(self, beat: Beat) -> float:
        """Seconds after which a rank with this heartbeat is late."""
        stepping = beat.phase in _STEPS and beat.beats >= heartbeat.SETTLED
        return max(self.step if stepping else self.long, SLOWER * beat.longest_s)


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"{name} is {text!r}: write seconds, for example {default:.0f}")
    return float(text)
