"""Rules: a check with a name, a reason and a page of documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.output import short
from tools.core.verdict import Verdict
from tools.preflight.subject import Subject

Check = Callable[[Subject], Iterator[Verdict]]


@dataclass(frozen=True)
class Rule:
    """A rule: a stable name, its reason in one line, its check, and its page (the check's docstring).

    The check yields PASS for each correct value, FAIL for each fault, and CANNOT TELL if the manifest does
    not say enough. It yields nothing if the rule does not apply.
    """

    id: str
    reason: str
    check: Check
    page: str


@dataclass(frozen=True)
class Place:
    """A path in an object with its value, such as `PyTorchJob/train`, `spec.runPolicy.cleanPodPolicy`."""

    object: str
    path: str
    value: Any = None

    def evidence(self) -> str:
        return f"{self.object}: {self.path}" + ("" if self.value is None else f": {short(self.value)}")

    def details(self) -> dict[str, Any]:
        return {"object": self.object, "path": self.path, "value": self.value}


RULES: dict[str, Rule] = {}


def rule(name: str, reason: str) -> Callable[[Check], Check]:
    """Register a check as the rule `name`."""

    def register(check: Check) -> Check:
        RULES[name] = Rule(name, reason, check, inspect.getdoc(check) or "")
        return check

    return register
