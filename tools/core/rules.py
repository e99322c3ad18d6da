"""Rules: named checks, whose texts are in a table beside them."""

import enum
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.tables import load
from tools.core.verdict import Verdict

Check = Callable[..., Iterator[Verdict]]


class Question(enum.Enum):
    """What a rule asks, as printed. A fault of TRAINS: no start, not one job, lost work or a leaked secret."""

    TRAINS = "will it train"
    PRACTICE = "good practice"


TRAINS, PRACTICE = Question


@dataclass(frozen=True)
class Rule:
    """A stable name, its reason in one line, its page, its question, and its check.

    The check yields PASS for each correct value, FAIL for each fault, and CANNOT TELL if what it reads does
    not say enough. It yields nothing if the rule does not apply. A WARN of a rule is about good practice.
    """

    id: str
    check: Check
    each: str
    why: str
    page: str
    question: Question

    def verdicts(self, subject: Any) -> Iterator[Verdict]:
        """Apply the check to a subject, or to each item of it that the rule is about."""
        items = getattr(subject, self.each) if self.each else None
        if items is None:
            return self.check(subject)
        return (one for item in (items() if callable(items) else items) for one in self.check(subject, item))


class Rules:
    """The rules of `tools/<package>/rules/`. As a decorator it registers a check by a name of its table."""

    def __init__(self, package: str, *modules: str) -> None:
        self._table = f"{package}/rules.yaml"
        self._modules = [f"tools.{package}.rules.{name}" for name in modules]
        self._found: dict[str, Rule] = {}

    def __call__(self, name: str, each: str = "") -> Callable[[Check], Check]:
        """Register a check of a subject. With `each`, it gets each item of that attribute or method beside it."""

        def register(check: Check) -> Check:
            row = load(self._table)[name]
            question = Question[row.get("asks", "trains").upper()]
            self._found[name] = Rule(name, check, each, row["why"], row["page"].rstrip(), question)
            return check

        return register

    @functools.cached_property
    def all(self) -> dict[str, Rule]:
        """All rules by name, in the order of the modules, whichever of them was imported first."""
        for name in self._modules:
            importlib.import_module(name)
        return dict(sorted(self._found.items(), key=lambda item: self._modules.index(item[1].check.__module__)))
