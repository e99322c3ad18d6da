"""Apply all rules to a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tools.cells.published import Published
from tools.core.rules import PRACTICE, TRAINS, Question, Rule
from tools.core.verdict import State, Verdict, of_state, worst
from tools.kube import Manifests, schemas
from tools.preflight.rule import rule
from tools.preflight.subject import Subject, subject, title
from tools.simulator.node import Given
from tools.workload.wrappers import shape_of

SCHEMA, TEMPLATE, WIRING = "schema", "template-left", "wiring"
_FAULTS = (State.FAIL, State.CANNOT_TELL)


@dataclass(frozen=True)
class Evaluation:
    """The verdicts on one manifest, in the order of the rules.

    `judged` counts the objects whose pods the rules looked at, by kind; `unjudged` those that no rule knows.
    """

    source: str
    verdicts: list[Verdict]
    judged: dict[str, int]
    unjudged: dict[str, int]

    def with_more(self, verdicts: Iterable[Verdict]) -> Evaluation:
        """Return the evaluation with verdicts of other checks on whether it will train."""
        asked = {"question": TRAINS.value}
        more = [replace(one, details={**one.details, **asked}) for one in verdicts]
        return replace(self, verdicts=[*self.verdicts, *more])

    def of(self, state: State) -> list[Verdict]:
        return of_state(self.verdicts, state)

    def answer(self, question: Question) -> State:
        """Return the worst verdict on a question. Good practice is PASS or WARN."""
        asked = [one.state for one in self.verdicts if one.details["question"] == question.value]
        return worst(asked)

    def answered(self, question: Question) -> str:
        """Return the answer as it is printed. If no job was judged, it says nothing about training."""
        if question is PRACTICE or any(one.details["rule"] == WIRING or one.state in _FAULTS for one in self.verdicts):
            return self.answer(question).value
        return "no training is seen" if self.judged else "no pods to judge"

    @property
    def state(self) -> State:
        return worst(verdict.state for verdict in self.verdicts)

    @property
    def needs(self) -> list[str]:
        """Return the objects that the manifest needs and does not contain."""
        return sorted({str(verdict.details["needs"]) for verdict in self.verdicts if "needs" in verdict.details})


def evaluate(
    manifests: Manifests,
    base: Published | None = None,
    given: Given | None = None,
    operator: str = "",
    missing_right: str = "",
) -> Evaluation:
    """Apply every rule to a parsed manifest.

    Its model must be that of `base`, and its containers without a command start what is `given`. `operator` is the
    release of the training operator, empty where it is unknown, for instance by a `missing_right` in the cluster.
    """
    checked = replace(subject(manifests, given, operator), base=base, missing_right=missing_right)
    verdicts = [checked.located(_asked(one, found)) for one in rule.all.values() for found in one.verdicts(checked)]
    verdicts = _once(verdicts)
    owners = {id(template.item): str(template.item["kind"]) for template in checked.templates if not template.foreign}
    return Evaluation(manifests.source, verdicts, Counter(owners.values()), _unjudged(checked))


def _once(verdicts: list[Verdict]) -> list[Verdict]:
    """Return verdicts without the FAILs that another rule explains better, for the same field.

    A text that a template left explains every fault of its value, and the schema explains least.
    """
    rules_at: dict[tuple[str, str], set[str]] = {}
    for one in verdicts:
        if one.state is State.FAIL:
            rules_at.setdefault(_place(one), set()).add(str(one.details["rule"]))

    unfilled = {name for (name, _), rules_ in rules_at.items() if TEMPLATE in rules_}

    def repeats(one: Verdict) -> bool:
        rule, others = one.details["rule"], rules_at.get(_place(one), set())
        if rule == WIRING and "$" in one.summary:  # an option of a launcher
            return one.details.get("object") in unfilled
        return (rule == SCHEMA and len(others) > 1) or (rule != TEMPLATE and TEMPLATE in others)

    return [one for one in verdicts if one.state is not State.FAIL or not repeats(one)]


def _place(verdict: Verdict) -> tuple[str, str]:
    return str(verdict.details.get("object")), str(verdict.details.get("path"))


def _asked(rule: Rule, verdict: Verdict) -> Verdict:
    """Return a verdict with its rule and its question. Only a fault of training is FAIL or CANNOT TELL."""
    practice = rule.question is PRACTICE or verdict.state is State.WARN
    state = State.WARN if practice and verdict.state is not State.PASS else verdict.state
    question = PRACTICE if practice else TRAINS
    details = {"rule": rule.id, "question": question.value, **verdict.details}
    return replace(verdict, state=state, details=details)


def _unjudged(checked: Subject) -> dict[str, int]:
    """Return the kinds of which the rules know neither pods nor a schema, with their counts."""
    judged = {title(template.item) for template in checked.templates if not template.foreign}
    runs = {title(one.item) for one in checked.unknown} | {title(one.item) for one in checked.jobs}
    runs |= {title(item) for item, _ in checked.misshapen}
    known = schemas.shipped()
    return Counter(
        str(item["kind"])
        for item in checked.every
        if title(item) not in judged and (title(item) in runs or not (known.knows(item) or shape_of(item)))
    )
