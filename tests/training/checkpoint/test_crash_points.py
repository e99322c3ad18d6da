"""A save that is killed at any point leaves the previous checkpoint or the new one, never a mixture."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint.values import assert_holds, held, state, whole
from training.checkpoint.layout import step_name
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store

Call = Callable[..., list[Any]]


@pytest.fixture
def copies(two_steps: Path, tmp_path: Path) -> Callable[[], Path]:
    """Fresh copies of the two saved steps; each is removed when the next one is created."""
    target = tmp_path / "run"

    def copy() -> Path:
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(two_steps, target))

    return copy


def resume(directory: Path) -> tuple[int, list[str]]:
    """Return what a new job finds: the newest step and the log. Every step there must be right."""
    seen = newest(directory)
    told: list[str] = []
    store = Store(directory, log=told.append)
    checkpoint = store.latest()
    assert checkpoint is not None
    assert seen is not None
    assert seen.step == checkpoint.step
    for step in store.steps():
        assert_holds(open_checkpoint(directory / step_name(step)), step)
    left_over = [path.name for path in directory.iterdir() if path.suffix in (".tmp", ".deleting")]
    assert not left_over
    return checkpoint.step, told


def save_again(directory: Path, step: int) -> None:
    """The resumed job commits the step."""
    store = Store(directory)
    store.save(step, held(whole(step), 0, 1, sharded=False), state(step, 0), {"tokens": 1000 * step}, {})
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.step == step


@pytest.mark.parametrize(
    ("world", "beside"),
    [(1, False), (2, False), (3, False), pytest.param(1, True, marks=pytest.mark.long),
     pytest.param(2, True, marks=pytest.mark.long)],
)  # fmt: skip
def test_killed_at_every_boundary_in_every_rank(
    ranks: Call, ranks_status: Call, copies: Callable[[], Path], world: int, beside: bool
) -> None:
    """Each boundary of each rank in turn (of three ranks the last), losing what was not synced."""
    how = {"step": 3, "beside": beside}
    passed = ranks("save_until_killed", world, directory=copies(), victim=0, point=None, **how)
    points = [(rank, point) for rank in range(world) for point in range(len(passed[rank])) if world < 3 or rank == 2]
    found = set()
    for victim, point in points:
        directory = copies()
        answers = ranks_status("save_until_killed", world, directory=directory, victim=victim, point=point, **how)
        where = f"rank {victim} killed before: {passed[victim][point]}"
        assert answers[victim]["status"] == -signal.SIGKILL, where
        step, told = resume(directory)
        committed = victim == 0 and any(call.startswith("rename step-00000003") for call in passed[0][:point])
        assert step == (3 if committed else 2), where
        assert not [line for line in told if "refused" in line], where
        save_again(directory, 3)
        found.add(step)
    assert len(points) >= {1: 50, 2: 65, 3: 15}[world]
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
