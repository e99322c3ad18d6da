"""`why` names the right cause first in every planted situation, and calls every healthy job healthy."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.job.conftest import NewWorld
from tests.job.confusion import Confusion, said
from tests.job.corpus import CANNOT_TELL, HEALTHY, Situation
from tests.job.situations import SITUATIONS
from tools.job.why import explain


def answer(one: Situation, world: NewWorld) -> tuple[str, str]:
    """What `why` says of a situation: the cause's kind or the state, and all of it for a failing test."""
    made = world(one.cell)
    one.plant(made)
    found = explain(made.snapshot())
    causes = [(cause.kind, cause.summary, cause.evidence) for cause in found.causes]
    return said(found), f"{found.state.value}: {found.summary} {causes}"


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.name)
def test_the_right_cause_comes_first(one: Situation, world: NewWorld) -> None:
    kind, told = answer(one, world)
    assert kind == one.cause, told


def test_the_corpus_is_wide_enough() -> None:
    """At least 180 situations, at least 25 healthy ones, and every name once."""
    names = [one.name for one in SITUATIONS]
    assert len(names) == len(set(names)) >= 180
    assert sum(one.cause == HEALTHY for one in SITUATIONS) >= 25
    assert sum(one.cause == CANNOT_TELL for one in SITUATIONS) >= 4


def test_the_table_tells_what_was_taken_for_what() -> None:
    found = Confusion(Counter({("nan", "nan"): 97, ("nan", "crash"): 2, (HEALTHY, HEALTHY): 1}))
    assert "nan                                         99    97  crash (2)" in found.table()
    assert "right first: 98.0% of 100; healthy jobs called something else: 0" in found.table()
    assert found.good
    assert not Confusion(found.counts + Counter({(HEALTHY, "hang"): 1})).good
    assert not Confusion(found.counts + Counter({("hang", "nan"): 9})).good
