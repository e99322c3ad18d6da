"""The planner's error on published runs."""

from __future__ import annotations

import statistics

import pytest

from tests.plan import error
from tools.plan.layout import FITTED

ROWS = error.read()


def test_published_runs_are_explained_by_the_stored_constants() -> None:
    errors = [abs(row.error(FITTED)) for row in ROWS]
    assert statistics.median(errors) <= 0.05
    assert sum(one <= 0.2 for one in errors) >= 0.95 * len(errors)


@pytest.mark.long
def test_a_source_that_was_left_out_is_predicted_by_the_others() -> None:
    found = [size for source in dict.fromkeys(row.source for row in ROWS) for _, size in error.left_out(ROWS, source)]
    sizes = sorted(abs(one) for one in found if one is not None)
    assert len(sizes) >= 0.98 * len(found)
    assert statistics.median(sizes) <= 0.1
    assert sum(one <= 0.2 for one in sizes) >= 0.9 * len(sizes)


@pytest.mark.long
def test_the_stored_constants_are_fitted_to_the_rows() -> None:
    assert {name: FITTED[name] for name in error.PRIOR} == pytest.approx(error.fit(ROWS), rel=0.01)


def test_a_kind_without_another_source_is_not_predicted() -> None:
    (pair,) = [one for one in error.left_out(ROWS, "torchao", rounds=1) if one[0].facts["precision"] == "fp8-rowwise"]
    assert pair[1] is None
