"""A save that is killed at each of its boundaries, and what a new job finds afterwards."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.training.checkpoint import beside
from tests.training.checkpoint.serving import Ranks, results
from tests.training.checkpoint.values import assert_holds, snapshot
from training.checkpoint.layout import committed_steps, step_name
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store

BESIDE = beside.__name__
NEW, OLD = beside.IN_FLIGHT, beside.IN_FLIGHT - beside.EVERY


@dataclass
class Swept:
    """What the points of a sweep showed."""

    points: int = 0
    found: set[int] = field(default_factory=set)
    """The steps that new jobs found."""
    lost: int = 0
    """The most steps that were computed again."""


def sweep(call: Ranks, copy: Callable[[], Path], world: int, step: int, *, damaged: bool = False) -> Swept:
    """Kill the save of `step` at each boundary of each rank (of three ranks the last); assert that nothing is torn.

    `copy` makes a directory in which step - 1 is the newest good one; with `damaged` the step is there as well, but
    broken. What was not synced is lost at each point.
    """
    passed = results(call("save_until_killed", world, directory=copy(), victim=0, point=None, step=step))
    swept = Swept()
    for victim, point in _points(passed):
        directory = copy()
        answers = call("save_until_killed", world, directory=directory, victim=victim, point=point, step=step)
        where = f"rank {victim} killed before: {passed[victim][point]}"
        assert answers[victim]["status"] == -signal.SIGKILL, where
        seen, told = resume(directory)
        assert seen == (step if _committed(victim, passed[victim][:point], step) else step - 1), where
        assert damaged or not [line for line in told if "refused" in line], where
        save_again(directory, step)
        swept.points += 1
        swept.found.add(seen)
    return swept


def _points(passed: list[list[str]], every: int = 1, first: int = 0) -> list[tuple[int, int]]:
    """The ranks and their boundaries at which one is killed: of three ranks those of the last."""
    chosen = range(len(passed)) if len(passed) < 3 else [len(passed) - 1]
    return [(rank, point) for rank in chosen for point in range(len(passed[rank]))][first::every]


def _committed(victim: int, before: list[str], step: int) -> bool:
    """Whether a victim had renamed the step's attempt to its own name, which is not to set that step aside."""
    return victim == 0 and any(name.startswith(f"rename {step_name(step)}.") for name in before)


def sweep_in_flight(
    call: Ranks,
    scratch: Path,
    world: int,
    *,
    nodes: bool = False,
    damaged: bool = False,
    every: int = 1,
    first: int = 0,
) -> Swept:
    """Kill a rank at each boundary of a save that is written beside later steps; assert that nothing is torn.

    Each point is a real run (beside.py). With `nodes` its steps are in the memory of each rank's node as well, with
    `damaged` the step in flight replaces a broken one; only each point number `every` is tried, from `first` on.
    """
    course = results(call(f"{BESIDE}:course", world))[0]
    source, home = scratch / "source", scratch / "home"
    results(call(f"{BESIDE}:begin", world, home=source, nodes=nodes))
    broken = _broken(call, source, home, scratch / "broken", world) if damaged else None

    def start(victim: int, point: int | None) -> list[dict[str, Any]]:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(source, home)
        given = "" if broken is None else shutil.copytree(broken, home / "broken")
        return call(
            f"{BESIDE}:train_until_killed", world, home=home, victim=victim, point=point, nodes=nodes, broken=given
        )

    passed = results(start(0, None))
    swept = Swept()
    for victim, point in _points(passed, every, first):
        answers = start(victim, point)
        where = f"rank {victim} killed before: {passed[victim][point]}"
        assert answers[victim]["status"] == -signal.SIGKILL, where
        proof = json.loads((home / "proof.json").read_text())
        assert (proof["training"] > NEW, proof["thread"] != "MainThread") == (True, True), f"{where}: {proof}"
        assert proof["boundary"].split()[0] == passed[victim][point].split()[0], f"{where}: {proof}"
        after = results(call(f"{BESIDE}:continue_to_the_end", world, home=home, nodes=nodes))
        found = after[0]["found"]
        for each in after:
            assert (each["found"], each["loaded"], each["end"]) == (found, course[found], course[-1]), where
        if not nodes:
            assert found == after[0]["seen"] == (NEW if _committed(victim, passed[victim][:point], NEW) else OLD), where
            assert damaged or not [line for line in after[0]["told"] if "refused" in line], where
        _assert_whole(home / "run" / "checkpoints", course)
        swept.points += 1
        swept.found.add(found)
        swept.lost = max(swept.lost, proof["training"] - found)
    return swept


def _broken(call: Ranks, source: Path, home: Path, target: Path, world: int) -> Path:
    """A copy of the step in flight that lacks a file."""
    shutil.copytree(source, home)
    results(call(f"{BESIDE}:train_until_killed", world, home=home, victim=0, point=None))
    shutil.copytree(home / "run" / "checkpoints" / step_name(NEW), target)
    (target / "rank-00000.json").unlink()
    return target


def _assert_whole(directory: Path, course: list[str]) -> None:
    """Every step there must be bitwise that of the undisturbed run, and nothing of a dead writer may be left."""
    steps = committed_steps(directory)
    assert steps in ([NEW, beside.LAST], [OLD, beside.LAST]), (
        "a job that finds step 12 on the nodes continues from there"
    )
    for step in steps:
        assert beside.saved_digest(directory / step_name(step)) == course[step], step
    assert not [path.name for path in directory.iterdir() if path.suffix in (".tmp", ".deleting")]


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
