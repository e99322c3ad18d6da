"""Verdicts: PASS, WARN, FAIL or CANNOT TELL, each with its evidence."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

SHOWN = 90  # characters of a value in evidence


class State(enum.Enum):
    """The result of a check; the value is how it is printed."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    CANNOT_TELL = "CANNOT TELL"

    @property
    def exit_code(self) -> int:
        """The process exit code for this state; a WARN alone is good."""
        return {State.PASS: 0, State.WARN: 0, State.FAIL: 1, State.CANNOT_TELL: 3}[self]


def worst(states: Iterable[State]) -> State:
    """Return the state of several checks together: FAIL outweighs CANNOT TELL, which outweighs WARN."""
    seen = set(states)
    return next((state for state in (State.FAIL, State.CANNOT_TELL, State.WARN) if state in seen), State.PASS)


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


class Placed(Protocol):
    """Where something stands that is judged: in a file, or in a manifest."""

    def evidence(self) -> str:
        """Return place and value in one line."""

    def details(self) -> dict[str, Any]:
        """Return place and value as plain data."""


def good(place: Placed, summary: str) -> Verdict:
    """Say what was looked at and is right."""
    return Verdict(State.PASS, summary, [place.evidence()], None, place.details())


def bad(place: Placed, summary: str, remedy: str) -> Verdict:
    """Say what is wrong and what to do about it."""
    return Verdict(State.FAIL, summary, [place.evidence()], remedy, place.details())


def unclear(place: Placed, summary: str, remedy: str | None = None) -> Verdict:
    """Say what cannot be told from what was looked at."""
    return Verdict(State.CANNOT_TELL, summary, [place.evidence()], remedy, place.details())


def shown(value: Any) -> str:
    """Return a value in one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
