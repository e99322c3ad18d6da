"""Rules: a check with a name, a reason, a question and a page of documentation."""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tools.core.output import short
from tools.core.tables import load
from tools.core.verdict import Verdict
from tools.preflight.subject import Subject

Check = Callable[[Subject], Iterator[Verdict]]


class Question(enum.Enum):
    """What a rule asks. The value is printed.

    A fault of TRAINS does not start, does not train as one job, loses its work or leaks a secret.
    """

    TRAINS = "will it train"
    PRACTICE = "good practice"


TRAINS, PRACTICE = Question


@dataclass(frozen=True)
class Rule:
    """A rule: a stable name, its question, its reason in one line, its page, and its check.

    All but the check are in rules.yaml. The check yields PASS for each correct value, FAIL for each fault,
    and CANNOT TELL if the manifest does not say enough. It yields nothing if the rule does not apply. A WARN
    of a rule on training is about good practice. In a rule on good practice, FAIL and CANNOT TELL count as
    WARN (`tools/preflight/evaluate.py`).
    """

    id: str
    reason: str
    question: Question
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


def needed(verdict: Verdict, what: str) -> Verdict:
    """Return a verdict that names something the job needs from the cluster."""
    return replace(verdict, details={**verdict.details, "needs": what})


RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Check], Check]:
    """Register a check as the rule `name` of rules.yaml."""

    def register(check: Check) -> Check:
        told = load("preflight/rules.yaml")[name]
        RULES[name] = Rule(name, told["why"], Question[told["asks"].upper()], check, told["page"].rstrip())
        return check

    return register
