"""What a rule is, and how it says what it found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.preflight.subject import Subject
from tools.verdict import State, Verdict

Check = Callable[[Subject], Iterator[Verdict]]
SHOWN = 90  # characters of a value in evidence


@dataclass(frozen=True)
class Rule:
    """One rule: a stable name, why it exists in one line, its check, and its page (the check's docstring).

    The check yields a PASS for each thing that it looked at and found right, a FAIL for each fault, and
    CANNOT TELL where the manifest does not say enough. It yields nothing where there is nothing to judge.
    """

    id: str
    reason: str
    check: Check
    page: str


@dataclass(frozen=True)
class Place:
    """Where something stands: `PyTorchJob/train`, `spec.runPolicy.cleanPodPolicy`, and its value there."""

    object: str
    path: str
    value: Any = None


RULES: dict[str, Rule] = {}


def rule(name: str, reason: str) -> Callable[[Check], Check]:
    """Register a check as the rule `name`."""

    def register(check: Check) -> Check:
        RULES[name] = Rule(name, reason, check, inspect.getdoc(check) or "")
        return check

    return register


def good(place: Place, summary: str) -> Verdict:
    """Say what was looked at and is right."""
    return _verdict(State.PASS, place, summary, None)


def bad(place: Place, summary: str, remedy: str) -> Verdict:
    """Say what is wrong and what to do about it."""
    return _verdict(State.FAIL, place, summary, remedy)


def unclear(place: Place, summary: str, remedy: str | None = None) -> Verdict:
    """Say what cannot be told from the manifest."""
    return _verdict(State.CANNOT_TELL, place, summary, remedy)


def _verdict(state: State, place: Place, summary: str, remedy: str | None) -> Verdict:
    line = f"{place.object}: {place.path}"
    if place.value is not None:
        line += f": {shown(place.value)}"
    details = {"object": place.object, "path": place.path, "value": place.value}
    return Verdict(state, summary, [line], remedy, details)


def shown(value: Any) -> str:
    """Return a value in one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
