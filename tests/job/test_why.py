"""`why` names the right cause first in every planted situation, and calls every healthy job healthy."""

from __future__ import annotations

import pytest

from tests.job.conftest import NewWorld
from tests.job.corpus import CANNOT_TELL, HEALTHY, Situation
from tests.job.situations import SITUATIONS
from tools.job.why import Answer, explain


def answer(one: Situation, world: NewWorld) -> tuple[str, str]:
    """What `why` says of a situation: the cause's kind or the state, and all of it for a failing test."""
    made = world(one.cell)
    one.plant(made)
    found = explain(made.snapshot())
    kind = found.causes[0].kind if found.state is Answer.CAUSE else found.state.value
    causes = [(cause.kind, cause.summary, cause.evidence) for cause in found.causes]
    return kind, f"{found.state.value}: {found.summary} {causes}"


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.name)
def test_the_right_cause_comes_first(one: Situation, world: NewWorld) -> None:
    kind, told = answer(one, world)
    assert kind == one.cause, told


def test_the_corpus_is_wide_enough() -> None:
    """At least 60 situations, at least 12 healthy ones, and every name once."""
    names = [one.name for one in SITUATIONS]
    assert len(names) == len(set(names)) >= 60
    assert sum(one.cause == HEALTHY for one in SITUATIONS) >= 12
    assert sum(one.cause == CANNOT_TELL for one in SITUATIONS) >= 4
