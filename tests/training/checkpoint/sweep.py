"""A save that is killed at each of its boundaries, and what a new job finds afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.training.checkpoint.serving import Ranks, results
from tests.training.checkpoint.values import assert_holds, snapshot
from training.checkpoint.layout import step_name
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store


def sweep(
    call: Ranks, copy: Callable[[], Path], world: int, step: int, *, beside: bool = False, damaged: bool = False
) -> tuple[int, set[int]]:
    """Kill the save of `step` at each boundary of each rank (of three ranks the last); assert that nothing is torn.

    `copy` makes a directory in which step - 1 is the newest good one; with `damaged` the step is there as well, but
    broken. Returns the number of points, and the steps that were found. What was not synced is lost at each point.
    """
    how = {"step": step, "beside": beside}
    passed = results(call("save_until_killed", world, directory=copy(), victim=0, point=None, **how))
    points = [(rank, point) for rank in range(world) for point in range(len(passed[rank])) if world < 3 or rank == 2]
    found = set()
    for victim, point in points:
        directory = copy()
        answers = call("save_until_killed", world, directory=directory, victim=victim, point=point, **how)
        where = f"rank {victim} killed before: {passed[victim][point]}"
        assert answers[victim]["status"] == -signal.SIGKILL, where
        seen, told = resume(directory)
        committed = victim == 0 and any(_commits(name, step) for name in passed[0][:point])
        assert seen == (step if committed else step - 1), where
        assert damaged or not [line for line in told if "refused" in line], where
        save_again(directory, step)
        found.add(seen)
    return len(points), found


def _commits(boundary: str, step: int) -> bool:
    """Whether a boundary is before the rename to the step's own name, and not before setting that step aside."""
    return boundary.startswith(f"rename {step_name(step)}.")


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
    store.save(snapshot(step))
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.step == step
