"""Apply all rules to a manifest."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from dataclasses import dataclass, replace

from tools.cells.published import Published
from tools.core.verdict import State, Verdict, worst
from tools.kube import schemas
from tools.kube.manifests import Manifests
from tools.preflight.rule import PRACTICE, RULES, TRAINS, Question, Rule
from tools.preflight.subject import Subject, subject
from tools.workload.wrappers import shape_of

MODULES = (
    *("operator", "enums", "lifecycle", "resources", "nodes", "storage", "container", "kind"),
    *("security", "names", "references", "environment", "config", "schema"),
)


@dataclass(frozen=True)
class Evaluation:
    """The verdicts on one manifest, in the order of the rules.

    `judged` counts the objects whose pods the rules looked at, by kind; `unjudged` those that no rule knows.
    """

    source: str
    verdicts: list[Verdict]
    judged: dict[str, int]
    unjudged: dict[str, int]

    def of(self, state: State) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.state is state]

    def answer(self, question: Question) -> State:
        """Return the worst verdict on a question. Good practice is PASS or WARN."""
        asked = [one.state for one in self.verdicts if one.details["question"] == question.value]
        return worst(asked)

    @property
    def state(self) -> State:
        return worst(verdict.state for verdict in self.verdicts)

    @property
    def needs(self) -> list[str]:
        """Return the objects that the manifest needs and does not contain."""
        return sorted(
            {str(verdict.details["needs"]) for verdict in self.verdicts if "needs" in verdict.details}
        )


@functools.cache
def rules() -> dict[str, Rule]:
    """Return all rules by name, in the order in which they are applied."""
    modules = [f"tools.preflight.rules.{name}" for name in MODULES]
    for name in modules:
        importlib.import_module(name)
    # One of the modules may have been imported, and its rules registered, before this.
    return dict(sorted(RULES.items(), key=lambda item: modules.index(item[1].check.__module__)))


def evaluate(manifests: Manifests, base: Published | None = None) -> Evaluation:
    """Apply every rule to a parsed manifest; its model must be that of `base`, if given."""
    checked = replace(subject(manifests), base=base)
    verdicts = [
        checked.located(_asked(rule, verdict)) for rule in rules().values() for verdict in rule.check(checked)
    ]
    owners = {id(template.item): str(template.item["kind"]) for template in checked.templates}
    return Evaluation(manifests.source, verdicts, Counter(owners.values()), _unjudged(checked))


def _asked(rule: Rule, verdict: Verdict) -> Verdict:
    """Return a verdict with its rule and its question. Only a fault of training is FAIL or CANNOT TELL."""
    practice = rule.question is PRACTICE or verdict.state is State.WARN
    state = State.WARN if practice and verdict.state is not State.PASS else verdict.state
    question = PRACTICE if practice else TRAINS
    details = {"rule": rule.id, "question": question.value, **verdict.details}
    return replace(verdict, state=state, details=details)


def _unjudged(checked: Subject) -> dict[str, int]:
    """Return the kinds of which the rules know neither pods nor a schema, with their counts."""
    judged = {id(template.item) for template in checked.templates}
    runs = {id(one.item) for one in checked.unknown} | {id(one.item) for one in checked.jobs}
    runs |= {id(item) for item, _ in checked.misshapen}
    known = schemas.shipped()
    return Counter(
        str(item["kind"])
        for item in checked.every
        if id(item) not in judged and (id(item) in runs or not (known.knows(item) or shape_of(item)))
    )
