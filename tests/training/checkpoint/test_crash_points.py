"""A save that is killed at any point leaves the previous checkpoint or the new one, never a mixture."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint import beside
from tests.training.checkpoint.sweep import BESIDE, NEW, OLD, resume, sweep, sweep_in_flight
from tests.training.checkpoint.values import whole
from training.checkpoint.layout import committed_steps, step_name

Call = Callable[..., list[Any]]


@pytest.fixture
def copies(two_steps: Path, tmp_path: Path) -> Callable[[], Path]:
    """Fresh copies of the two saved steps; each is removed when the next one is created."""
    target = tmp_path / "run"

    def copy() -> Path:
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(two_steps, target))

    return copy


@pytest.mark.parametrize("world", [1, 2, 3])
def test_killed_at_every_boundary_in_every_rank(ranks_status: Call, copies: Callable[[], Path], world: int) -> None:
    """Each boundary of each rank in turn (of three ranks the last), losing what was not synced."""
    swept = sweep(ranks_status, copies, world, 3)
    assert swept.points >= {1: 50, 2: 65, 3: 15}[world]
    assert swept.found == ({2} if world == 3 else {2, 3})


@pytest.mark.parametrize(
    ("world", "nodes", "damaged", "every"),
    [(1, False, False, 15), (2, False, False, 22), (2, True, False, 61), (1, False, True, 19)],
)
def test_killed_with_a_save_in_flight(
    ranks_status: Call, tmp_path: Path, world: int, nodes: bool, damaged: bool, every: int
) -> None:
    """Some boundaries of a save beside later steps; `make faults` tries all of them."""
    swept = sweep_in_flight(ranks_status, tmp_path, world, nodes=nodes, damaged=damaged, every=every)
    assert swept.points >= 4
    assert swept.found == {OLD, NEW}
    assert swept.lost < 2 * (NEW - OLD)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(("patience", "newest"), [(30, NEW), (0, OLD)])
def test_a_failed_rank_that_waits_commits_the_save_in_flight(
    ranks: Call, ranks_status: Call, tmp_path: Path, victim: int, patience: int, newest: int
) -> None:
    """The other rank waits for the victim in a step. A rank that ends at once is the control."""
    ranks(f"{BESIDE}:begin", 2, home=tmp_path)
    answers = ranks_status(f"{BESIDE}:fail_in_flight", 2, home=tmp_path, victim=victim, patience=patience)
    assert [answer["status"] for answer in answers] == [1, 1]
    assert committed_steps(tmp_path / "run" / "checkpoints")[-1] == newest
    assert ranks(f"{BESIDE}:continue_to_the_end", 2, home=tmp_path)[0]["found"] == newest


def test_control_a_save_that_shares_memory_with_training_is_silently_wrong(ranks: Call, tmp_path: Path) -> None:
    """The sweep in flight can fail: without the copy, step 12 verifies but holds values of later steps."""
    course = ranks(f"{BESIDE}:course", 1)[0]
    written = {}
    for writer in ("trainer", "unstaged"):
        ranks(f"{BESIDE}:begin", 1, home=tmp_path / writer)
        ranks(f"{BESIDE}:train_until_killed", 1, home=tmp_path / writer, victim=0, point=None, writer=writer)
        written[writer] = beside.saved_digest(tmp_path / writer / "run" / "checkpoints" / step_name(NEW))
    assert written["trainer"] == course[NEW]
    assert written["unstaged"] not in course


def test_control_writing_in_place_beside_training_leaves_a_mixture(
    ranks: Call, ranks_status: Call, tmp_path: Path
) -> None:
    """Without the protocol the same kills leave values of two steps, or half of a file."""
    ranks(f"{BESIDE}:begin", 1, home=tmp_path)
    how = {"home": tmp_path, "victim": 0, "writer": "in place"}
    passed = ranks(f"{BESIDE}:train_until_killed", 1, point=None, **how)[0]
    assert ranks(f"{BESIDE}:steps_in_place", 1, home=tmp_path) == [[NEW]]
    torn = 0
    for point in range(1, len(passed), 9):
        (tmp_path / "proof.json").unlink(missing_ok=True)
        killed = ranks_status(f"{BESIDE}:train_until_killed", 1, point=point, **how)
        assert killed[0]["status"] == -signal.SIGKILL
        torn += ranks(f"{BESIDE}:steps_in_place", 1, home=tmp_path) == [[]]
    assert torn > len(range(1, len(passed), 9)) // 2


def test_names_are_durable_before_they_are_relied_on(ranks: Call, copies: Callable[[], Path]) -> None:
    """Both directories are synced around the rename, and nothing is pruned or pointed at before."""
    passed = ranks("save_until_killed", 1, directory=copies(), step=3, victim=0, point=None)[0]
    renamed = next(i for i, call in enumerate(passed) if call.startswith("rename step-00000003"))
    syncs = [i for i, call in enumerate(passed) if call.startswith("fsync")]
    before = [passed[i].removeprefix("fsync ") for i in syncs if i < renamed]
    assert before[:3] == ["rank-00000.safetensors", "rank-00000.json", "MANIFEST.json"]
    assert before[3].startswith("step-00000003.")
    parent_synced = next(i for i in syncs if i > renamed)
    assert passed[parent_synced] == "fsync run"
    assert passed.index("rename step-00000001") > parent_synced
    assert next(i for i, call in enumerate(passed) if call.startswith("replace LATEST")) > parent_synced


def test_control_without_fsync_the_committed_step_is_torn(
    ranks: Call, ranks_status: Call, copies: Callable[[], Path]
) -> None:
    """The sweep above can fail: without fsync, a power loss after the rename tears the new step."""
    passed = ranks("save_until_killed", 1, directory=copies(), step=3, victim=0, point=None)[0]
    after_rename = 1 + next(i for i, call in enumerate(passed) if call.startswith("rename step-00000003"))
    directory = copies()
    killed = ranks_status("save_until_killed", 1, directory=directory, step=3, victim=0, point=after_rename, lazy=True)
    assert killed[0]["status"] == -signal.SIGKILL
    step, told = resume(directory)
    assert step == 2
    assert [line for line in told if "step 3 is refused" in line]


def test_control_writing_in_place_leaves_a_mixture(ranks: Call, ranks_status: Call, tmp_path: Path) -> None:
    """Without the protocol the same kills leave values of two steps."""
    ranks("save_in_place_until_killed", 1, directory=tmp_path, step=2, point=None)
    passed = ranks("save_in_place_until_killed", 1, directory=tmp_path, step=3, point=None)[0]
    mixtures = 0
    for point in range(len(passed)):
        ranks("save_in_place_until_killed", 1, directory=tmp_path, step=2, point=None)
        killed = ranks_status("save_in_place_until_killed", 1, directory=tmp_path, step=3, point=point)
        assert killed[0]["status"] == -signal.SIGKILL
        mixtures += sum(holds(tmp_path, step) for step in (2, 3)) == 0
    assert mixtures > len(passed) // 2


def holds(directory: Path, step: int) -> bool:
    """Whether the files written in place are all of `step`."""
    return all(
        (directory / name).read_bytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in whole(step).items()
    )
