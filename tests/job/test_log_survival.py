"""An error is survived if training took new steps after it: steps of its own rank, where ranks print theirs."""

from __future__ import annotations

import pytest

from tools.core.verdict import State
from tools.job.diagnosis import log_causes, log_files
from tools.job.diagnosis.explain import Explanation
from tools.job.snapshot import log_lines

ECC = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 10, in <module>',
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
)
FULL = "ERROR: saving the checkpoint of step {n} failed: [Errno 28] No space left on device"
RANKS = range(8)


def explained(lines: list[str], code: int | None = None) -> Explanation:
    return log_files.explain([log_files.LogFile("a.log", log_lines.read("\n".join(lines), "a.log"))], code)


def of_ranks(prefix: str, ranks: list[int], *steps: int) -> list[str]:
    return [f"{prefix.format(n=rank)}step {step} loss 2.{step}" for step in steps for rank in ranks]


@pytest.mark.parametrize("steps", ["[rank{n}]: ", "[default{n}]:", "2026-03-01 10:00:00 [rank{n}]: ", ""])
@pytest.mark.parametrize("error", ["[rank3]: ", "[default3]:", "[default3]:[rank3]: "])
def test_late_lines_of_other_ranks_do_not_show_that_a_rank_survived(steps: str, error: str) -> None:
    others = [rank for rank in RANKS if rank != 3]
    late = [*of_ranks(steps, [7], 3), *of_ranks(steps, others, 4)]
    found = explained([*of_ranks(steps, list(RANKS), 1, 2, 3), *(error + line for line in ECC), *late])
    assert [(cause.kind, cause.rank) for cause in found.causes] == [("device", 3)]
    assert ECC[-1] in found.causes[0].evidence[0]


def test_steps_of_its_own_rank_count_where_each_rank_prints_its_own() -> None:
    """Ranks that do not wait for each other, as those of a sweep."""
    before, error = of_ranks("[rank{n}]: ", [2, 3], 1, 2, 3), [f"[rank3]: {line}" for line in ECC]
    assert explained([*before, *error, *of_ranks("[rank{n}]: ", [2], *range(4, 40))]).causes[0].rank == 3
    assert explained([*before, *error, *of_ranks("[rank{n}]: ", [2, 3], *range(4, 8))]).state is State.PASS


@pytest.mark.parametrize(
    "after",
    [
        [f"step {n} loss 2.1" for n in range(101, 104)],
        [f"[default0]:step {n} loss 2.1" for n in range(101, 104)],
        [f"step {n} loss 2.1" for n in (50, 51, 52, 53)],  # it continues from a checkpoint
        [f"epoch 2 step {n} loss 2.1" for n in (1, 2, 3, 4)],
        [f"epoch {'9' * 400} step {n} loss 2.1" for n in (1, 2, 3, 4)],
        [f'{{"level": "info", "event": "step", "step": {n}, "loss": 2.1}}' for n in range(101, 105)],
        [f"{{'loss': 2.{n}, 'learning_rate': 1e-05, 'epoch': 0.1}}" for n in (1, 2, 3, 4)],
    ],
)
def test_new_steps_show_that_an_error_was_survived(after: list[str]) -> None:
    before = [f"step {n} loss 2.1" for n in (98, 99, 100)]
    error = f"[default3]:{FULL.format(n=100)}"
    assert log_causes.first_cause(log_lines.read("\n".join([*before, error, *after]))) is None
    found = log_causes.first_cause(log_lines.read("\n".join([*before, error, *after[:1] * 9])))
    assert found is not None, "one step is not enough, however often it is printed"
    assert found.kind == "storage-full"


def test_errors_that_training_survived_are_told() -> None:
    errors = {10: FULL.format(n=10), 20: FULL.format(n=20)}
    lines = [line for n in range(1, 31) for line in (f"step {n} loss 2.1", errors.get(n)) if line]
    healthy = explained(lines)
    assert healthy.state is State.PASS
    assert "no line reports a failure, but 2 errors that training survived (a.log:11, a.log:22)," in healthy.summary
    (cause,) = explained(lines, 1).causes
    assert (cause.kind, str(cause.confidence)[:4]) == ("storage-full", "low:")
    assert cause.evidence == [f"a.log:22: {errors[20]}", "exit code 1"]
    assert explained(lines, 137).causes[0].kind == "killed", "the code itself says more"
    assert explained([line for line in lines if "ERROR" not in line], 1).causes[0].kind == "crash"
