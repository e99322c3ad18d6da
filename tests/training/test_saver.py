"""Checkpoints written beside training are those of their step, one at a time, and the last one is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.inprocess import StopAfter, Texts, losses, run, same, tensors
from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import open_checkpoint
from training.checkpoint.store import Store
from training.checkpoint.write import Snapshot
from training.run.directory import RunDir
from training.trainer import loop

BESIDE = "checkpoint.asynchronous=true"
KEPT = "checkpoint.keep=9"
Save = Callable[..., Any]


def _patched(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """Call `before` with the step in the thread that saves, before it writes anything."""
    real = Store.save

    def save(self: Store, given: Snapshot, **more: Any) -> Any:
        before(given.step)
        return real(self, given, **more)

    monkeypatch.setattr(Store, "save", save)


def _steps(run_dir: RunDir) -> dict[str, dict[str, torch.Tensor]]:
    opened = {path.name: open_checkpoint(path) for path in run_dir.checkpoints.glob("step-????????")}
    return {name: {each: found.full(each) for each in found.names()} for name, found in opened.items()}


def test_a_save_beside_training_holds_its_own_step(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of step 5 is written before two more steps are done, and it is what a waiting save wrote."""
    waiting = run(texts, (KEPT, "train.steps=12"), tmp_path / "waiting", data_root)
    moved = tmp_path / "beside"

    def two_steps_later(step: int) -> None:
        end = time.monotonic() + 60
        while step == 5 and len(losses(RunDir(moved))) < 7:
            assert time.monotonic() < end
            time.sleep(0.01)

    _patched(monkeypatch, two_steps_later)
    beside = run(texts, (KEPT, BESIDE, "train.steps=12"), moved, data_root)
    expected, found = _steps(waiting), _steps(beside)
    assert found.keys() == expected.keys() == {"step-00000005", "step-00000010", "step-00000012"}
    assert all(same(found[step], expected[step]) for step in found)
    assert losses(beside) == losses(waiting)


def test_one_save_is_in_flight_and_a_stop_waits_for_it(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, threads = [0], [0], set()

    def count(step: int) -> None:
        threads.add(threading.current_thread() is threading.main_thread())
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.1)
        running[0] -= 1

    _patched(monkeypatch, count)
    overrides = (KEPT, BESIDE, "checkpoint.every=2")
    stopped = run(texts, overrides, tmp_path, data_root, StopAfter(7))
    assert set(_steps(stopped)) == {f"step-0000000{step}" for step in (2, 4, 6, 7)}
    assert (most[0], threads) == (1, {False, True})
    assert same(tensors(stopped), _steps(stopped)["step-00000007"])


def test_a_failed_save_beside_training_is_a_warning(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(step: int) -> None:
        if step == 10:
            raise CheckpointError("rank 0 could not write: No space left on device")

    _patched(monkeypatch, full)
    done = run(texts, (KEPT, BESIDE, "train.steps=12"), tmp_path, data_root)
    assert set(_steps(done)) == {"step-00000005", "step-00000012"}
    assert "step 10 was not saved" in done.rank_log(0).read_text()


class Waits(TorchDispatchMode):
    """Counts operations that make the host wait for a device: they read a tensor's value or its count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(operation)
        if any(each in name for each in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal.default", "unique")):
            self.seen.append(name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_the_host_waits_for_nothing_within_a_step(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: str
) -> None:
    seen: list[list[str]] = []
    real = loop._step

    def watched(*given: Any) -> str:
        with Waits() as waits:
            result = real(*given)
        seen.append(waits.seen)
        return result

    monkeypatch.setattr(loop, "_step", watched)
    run(texts, ("train.steps=3", f"train.moment_precision={moments}"), tmp_path, data_root)
    assert seen == [[], [], []]


def test_control_reading_a_value_is_counted() -> None:
    with Waits() as waits:
        torch.ones(()).item()
    assert len(waits.seen) == 1
