"""The class of a failed container's log is that of its first failure, whatever stands around it."""

from __future__ import annotations

import pytest

from tests.job.conftest import NewWorld
from tests.job.corpus import STEP
from tests.job.log_corpus import QUIET, ROWS, text_of
from tools.job.diagnosis import log_patterns
from tools.job.diagnosis.explain import Answer, explain
from tools.job.snapshot import log_lines


@pytest.mark.parametrize(
    ("kind", "lines"), [(row[0], row[1:]) for row in ROWS], ids=lambda one: str(one)[:60]
)
def test_a_log_is_told_by_its_first_failure(kind: str, lines: tuple[str, ...]) -> None:
    found = log_patterns.first_cause(log_lines.read(text_of(*lines)))
    assert found is not None
    assert found.kind == kind, found


def test_lines_of_other_writers_are_no_part_of_a_message() -> None:
    """torchrun --tee marks all lines of a rank, torch only those of what ended it."""
    log = text_of(
        "[default0]:! KeyError: 'labels'", "[default0]:saved: no space left on device is not the case"
    )
    found = log_patterns.first_cause(log_lines.read(log))
    assert found is not None
    assert found.kind == "crash"


def test_a_log_without_a_failure_has_no_cause() -> None:
    quiet = (
        "INFO config file not found",
        "x:1:1 [0] NCCL WARN NET/OFI no device",
        "steps",
        "val error: 0.31",
        '{"level":"warning","msg":"OSError: [Errno 28] No space left on device"}',
    )
    assert log_patterns.first_cause(log_lines.read(text_of(*quiet))) is None


@pytest.mark.parametrize("lines", QUIET, ids=lambda one: one[0][:60])
def test_what_healthy_jobs_write_is_no_cause(lines: tuple[str, ...]) -> None:
    """Nor is it where the container has failed of something that is not in its log."""
    found = log_patterns.first_cause(log_lines.read(text_of(*lines)))
    assert found is None, found


def test_a_job_that_trains_is_healthy_whatever_its_log_says(world: NewWorld) -> None:
    for lines in QUIET:
        made = world()
        made.log(0, *text_of(*lines).splitlines(), *(STEP.format(n=n) for n in range(1, 9)), seconds=60)
        found = explain(made.snapshot())
        assert found.state is Answer.HEALTHY, (lines, found.causes)
