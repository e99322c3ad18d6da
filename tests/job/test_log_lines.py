"""The class of a failed container's log is that of its first failure, whatever stands around it."""

from __future__ import annotations

import pytest

from tests.job.conftest import NewWorld
from tests.job.corpus import STEP
from tests.job.log_corpus import CASES, HEALTHY, Case
from tools.job.diagnosis import log_patterns
from tools.job.diagnosis.explain import Answer, explain
from tools.job.snapshot import log_lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_has_the_class_of_its_first_failure(case: Case) -> None:
    """A log without a failure has no class: the container failed of something that the log does not show."""
    found = log_patterns.first_cause(log_lines.read(case.text))
    assert (found.kind if found else HEALTHY) == case.why, found


def test_the_corpus_is_wide_enough() -> None:
    """At least 540 logs of failures and 105 of healthy jobs."""
    healthy = sum(case.why == HEALTHY for case in CASES)
    assert healthy >= 105
    assert len(CASES) - healthy >= 540


def test_lines_of_other_writers_are_not_part_of_a_message() -> None:
    """torchrun --tee marks all lines of a rank, torch only those of the exception that ended it."""
    log = """\
[default0]:Traceback (most recent call last):
[default0]:  File "/w/train.py", line 10, in main
[default0]:    step()
[default0]:KeyError: 'labels'
[default0]:saved: no space left on device is not the case"""
    found = log_patterns.first_cause(log_lines.read(log))
    assert found is not None
    assert found.kind == "crash"


def test_a_log_without_a_failure_has_no_cause() -> None:
    log = """\
INFO config file not found
x:1:1 [0] NCCL WARN NET/OFI no device
val error: 0.31
{"level":"warning","msg":"OSError: [Errno 28] No space left on device"}"""
    steps = [STEP.format(n=n) for n in range(1, 13)]
    assert log_patterns.first_cause(log_lines.read("\n".join([log, *steps]))) is None
    assert log_patterns.first_cause(log_lines.read(log)) is None


def test_a_training_job_is_healthy_whatever_its_log_says(world: NewWorld) -> None:
    for case in CASES:
        if case.why == HEALTHY:
            made = world()
            made.log(0, *case.text.splitlines(), *(STEP.format(n=n) for n in range(1, 9)), seconds=60)
            found = explain(made.snapshot())
            assert found.state is Answer.HEALTHY, (case.name, found.causes)
