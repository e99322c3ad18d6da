"""Verdicts: PASS, WARN, FAIL or CANNOT TELL, each with its evidence."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


class State(enum.Enum):
    """The result of a check. The value is printed."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    CANNOT_TELL = "CANNOT TELL"

    @property
    def exit_code(self) -> int:
        """The process exit code for this state. A warning alone exits with 0."""
        return {State.PASS: 0, State.WARN: 0, State.FAIL: 1, State.CANNOT_TELL: 3}[self]


def worst(states: Iterable[State]) -> State:
    """Return the worst of several states, from FAIL through CANNOT TELL and WARN to PASS."""
    seen = set(states)
    return next((state for state in (State.FAIL, State.CANNOT_TELL, State.WARN) if state in seen), State.PASS)


@dataclass(frozen=True)
class Verdict:
    """One finding: its state, a sentence, the evidence line by line, and how to fix it."""

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


def of_state(verdicts: Iterable[Verdict], state: State) -> list[Verdict]:
    """Return the verdicts of a state. Those of one rule with one sentence and remedy are one, with all evidence."""
    found: dict[tuple[Any, ...], Verdict] = {}
    for one in (one for one in verdicts if one.state is state):
        key = one.details.get("rule"), one.summary, one.remedy
        before = found.get(key, one)
        found[key] = replace(before, evidence=list(dict.fromkeys([*before.evidence, *one.evidence])))
    return list(found.values())


class Placed(Protocol):
    """A place in a file or manifest, with the value there."""

    def evidence(self) -> str:
        """Return place and value as one line."""

    def details(self) -> dict[str, Any]:
        """Return place and value as plain data."""


def good(place: Placed, summary: str) -> Verdict:
    return Verdict(State.PASS, summary, [place.evidence()], None, place.details())


def bad(place: Placed, summary: str, remedy: str) -> Verdict:
    return Verdict(State.FAIL, summary, [place.evidence()], remedy, place.details())


def doubtful(place: Placed, summary: str, remedy: str) -> Verdict:
    return Verdict(State.WARN, summary, [place.evidence()], remedy, place.details())


def unclear(place: Placed, summary: str, remedy: str | None = None) -> Verdict:
    return Verdict(State.CANNOT_TELL, summary, [place.evidence()], remedy, place.details())
