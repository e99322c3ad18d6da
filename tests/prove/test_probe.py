"""The probe in real ranks: what it records, when it ends them, and which faults it causes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.prove.parts import ROOT, launch
from training.prove.records import Batch, Begin, End, Injected, Loss, Step, World

DDP = ROOT / "tests/prove/scripts/ddp.py"


def test_two_ranks_record_their_steps_and_end_after_the_wished_number(tmp_path: Path) -> None:
    done = launch(tmp_path, DDP, steps=7)
    assert done.exit_code == 0, done.output
    assert sorted(done.ranks) == [0, 1]
    assert len(done.files) == 2  # neither torchrun nor a worker of a loader has a file
    for rank in (0, 1):
        assert isinstance(done.ranks[rank][0], Begin)
        assert [step.step for step in done.of(rank, Step)] == list(range(1, 8))
        (world,) = done.of(rank, World)
        assert (world.size, world.rank, world.backend) == (2, rank, "gloo")
        (end,) = done.of(rank, End)
        assert (end.reason, end.step, end.seeded) == ("steps", 7, False)
        assert all(step.collectives for step in done.of(rank, Step))
        assert all(loss.finite and loss.value > 0 for loss in done.of(rank, Loss))
    left, right = (done.of(rank, Step) for rank in (0, 1))
    assert [step.parameters_after for step in left] == [step.parameters_after for step in right]
    assert all(after.parameters_before == before.parameters_after for before, after in itertools.pairwise(left))
    assert {batch.digest for batch in done.of(0, Batch)} & {batch.digest for batch in done.of(1, Batch)} == set()
    # The save after step 5 is there, and nothing of step 8.
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000005.pt"]


@pytest.mark.parametrize("kind", ["kill", "exception", pytest.param("terminate", marks=pytest.mark.long)])
def test_a_fault_happens_at_its_step(kind: str, tmp_path: Path) -> None:
    done = launch(tmp_path, DDP, steps=9, fault={"kind": kind, "step": 3, "rank": 1})
    injected = done.all(Injected)
    assert {event.step for event in injected} == {3}
    if kind == "terminate":
        assert done.exit_code == 0  # the signal is the runner's
        return
    assert done.exit_code == 1, done.output
    assert {event.rank for event in injected} == ({0, 1} if kind == "kill" else {1})
    assert max(step.step for step in done.all(Step)) == 3
    if kind == "exception":
        assert "trainyard: planted exception" in done.output
        assert done.of(1, End)[0].reason == "exception"
