"""The planned memory beside what ranks of the trainer allocate: the cases of memory.yaml."""

from __future__ import annotations

import statistics

import pytest

from tests.plan import memory

CASES = memory.read()
# Compiled cases are left out: inductor's code, and so its buffers, differs by the vector units of the processor.
AGAIN = ("ddp, fp32", "fsdp, fp32", "1B, hsdp")


@pytest.mark.parametrize("used", [True, False])
def test_planned_memory_is_near_the_measured(used: bool) -> None:
    errors = [one.error for one in CASES if one.used is used]
    assert len(errors) > 5
    assert statistics.median(map(abs, errors)) <= 0.03
    assert max(errors) <= 0.08


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_plan_is_lower_than_measured_by_more_than_3_percent(case: memory.Case) -> None:
    assert case.error >= -0.03


@pytest.mark.long
@pytest.mark.parametrize("name", AGAIN)
def test_the_measured_bytes_are_measured_again(name: str) -> None:
    (case,) = (one for one in CASES if one.name == name)
    ((_, nbytes),) = memory.measure([case])
    assert nbytes == pytest.approx(case.measured, rel=0.005)
