"""What a rule is, and how it says what it found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.verdict import Verdict, shown
from tools.preflight.subject import Subject

Check = Callable[[Subject], Iterator[Verdict]]


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

    def evidence(self) -> str:
        """Return place and value in one line."""
        return f"{self.object}: {self.path}" + ("" if self.value is None else f": {shown(self.value)}")

    def details(self) -> dict[str, Any]:
        """Return place and value as plain data."""
        return {"object": self.object, "path": self.path, "value": self.value}


RULES: dict[str, Rule] = {}


def rule(name: str, reason: str) -> Callable[[Check], Check]:
    """Register a check as the rule `name`."""

    def register(check: Check) -> Check:
        RULES[name] = Rule(name, reason, check, inspect.getdoc(check) or "")
        return check

    return register
