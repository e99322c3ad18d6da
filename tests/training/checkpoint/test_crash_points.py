"""A save that is killed at any point leaves the previous checkpoint or the new one, never a mixture."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint.sweep import resume, sweep
from tests.training.checkpoint.values import whole

Call = Callable[..., list[Any]]


@pytest.fixture
def copies(two_steps: Path, tmp_path: Path) -> Callable[[], Path]:
    """Fresh copies of the two saved steps; each is removed when the next one is created."""
    target = tmp_path / "run"

    def copy() -> Path:
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(two_steps, target))

    return copy


@pytest.mark.parametrize(
    ("world", "beside"),
    [(1, False), (2, False), (3, False), pytest.param(1, True, marks=pytest.mark.long),
     pytest.param(2, True, marks=pytest.mark.long)],
)  # fmt: skip
def test_killed_at_every_boundary_in_every_rank(
    ranks_status: Call, copies: Callable[[], Path], world: int, beside: bool
) -> None:
    """Each boundary of each rank in turn (of three ranks the last), losing what was not synced."""
    points, found = sweep(ranks_status, copies, world, 3, beside=beside)
    assert points >= {1: 50, 2: 65, 3: 15}[world]
    assert found == ({2} if world == 3 else {2, 3})


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
