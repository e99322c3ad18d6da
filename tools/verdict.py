"""A verdict of three states, with its evidence."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class State(enum.Enum):
    """What a check can find; the value is how it is printed."""

    PASS = "PASS"
    FAIL = "FAIL"
    CANNOT_TELL = "CANNOT TELL"

    @property
    def exit_code(self) -> int:
        """Return the process exit code that stands for this state."""
        return {State.PASS: 0, State.FAIL: 1, State.CANNOT_TELL: 3}[self]


@dataclass(frozen=True)
class Verdict:
    """One finding: its state, one sentence, the evidence line by line, and what to do about it."""

    state: State
    summary: str
    evidence: list[str] = field(default_factory=list)
    remedy: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data for `--json`."""
        return {
            "verdict": self.state.value,
            "summary": self.summary,
            "evidence": self.evidence,
            "remedy": self.remedy,
            **self.details,
        }
