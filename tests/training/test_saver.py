"""Checkpoints written beside training are those of their step, one at a time, and the last one is waited for."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.inprocess import StopAfter, Texts, losses, run, same, tensors
from tests.training.poisoned import poison
from training import checkpoints
from training.checkpoint.attempt import Attempt
from training.checkpoint.layout import committed_steps
from training.checkpoint.read import open_checkpoint
from training.checkpoint.store import Store
from training.checkpoint.write import Snapshot
from training.device.cpu import Cpu
from training.run.directory import RunDir
from training.run.failure import LossError
from training.trainer import loop
from training.trainer.saver import Saver

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
        end = time.monotonic() + 60
        while step == 2 and len(losses(RunDir(tmp_path))) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)
        running[0] -= 1

    _patched(monkeypatch, count)
    overrides = (KEPT, BESIDE, "checkpoint.every=2")
    stopped = run(texts, overrides, tmp_path, data_root, StopAfter(7))
    assert set(_steps(stopped)) == {f"step-0000000{step}" for step in (2, 4, 6, 7)}
    assert (most[0], threads) == (1, {False, True})
    waited = r"step 4 waited \d+\.\d s for the save before it and \d+\.\d s for the copy of its state"
    assert re.search(waited, stopped.rank_log(0).read_text())
    assert same(tensors(stopped), _steps(stopped)["step-00000007"])


def test_a_save_that_outlives_a_bounded_wait_is_waited_for_later() -> None:
    saver, ended = Saver(Mock(), {}, beside=True), threading.Event()
    saver._thread = writing = threading.Thread(target=ended.wait)
    writing.start()
    saver.finish(0.01)
    threading.Timer(0.2, ended.set).start()
    saver.finish()
    assert not writing.is_alive()


@pytest.mark.parametrize("beside", [False, True])
def test_a_stop_right_after_a_save_does_not_write_the_step_again(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Also at the first step of a run that continues; a stop one step later writes that step."""
    begun = _counted(monkeypatch)
    keys = (KEPT, f"checkpoint.asynchronous={beside}".lower())
    for _ in range(2):
        stopped = run(texts, keys, tmp_path, data_root, StopAfter(5))
        assert begun == [5]
    digest = hashlib.sha256((stopped.checkpoints / "step-00000005" / "MANIFEST.json").read_bytes()).hexdigest()
    said = f"step 5 is committed already: not written again (its manifest: sha256 {digest})"
    text = stopped.rank_log(0).read_text()
    assert (text.count(said), text.count("checkpoint of step 5 saved")) == (2, 1)
    run(texts, keys, tmp_path, data_root, StopAfter(6))
    assert begun == [5, 6]


def test_a_step_that_is_trained_again_after_a_rollback_is_written_again(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 6 is damaged and step 7 is bad: from step 4, step 6 is another state, which a stop then finds committed."""
    poison({"nan": [8 * 6]}, monkeypatch.setattr)
    begun = _counted(monkeypatch)
    damaged = tmp_path / "checkpoints" / "step-00000006" / "rank-00000.safetensors"

    class Stops(StopAfter):
        """Damages step 6, and asks for a stop there after the rollback."""

        @property
        def stop_requested(self) -> bool:
            rolled_back = (tmp_path / "skipped.jsonl").exists()
            if self.step == 6 and not rolled_back:
                damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
            return rolled_back and self.step == 6

        @stop_requested.setter
        def stop_requested(self, value: bool) -> None:
            assert not value

    keys = (KEPT, "checkpoint.every=2", "train.on_nan=rollback:1", "device.log_every=1")
    run(texts, keys, tmp_path, data_root, Stops(6))
    assert begun == [2, 4, 6, 6]
    found = _steps(RunDir(tmp_path))
    assert set(found) == {"step-00000002", "step-00000004", "step-00000006"}
    assert "step 6 is committed already" in RunDir(tmp_path).rank_log(0).read_text()
    kept = open_checkpoint(tmp_path / "checkpoints" / "step-00000006").run_state["data"]["position"]
    assert kept == 8 * 9, "the samples of steps 5 to 7 were passed over"


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are written on the volume, in their order."""
    begun: list[int] = []
    begin = Attempt.begin

    def counted(root: Path, step: int) -> Attempt:
        begun.append(step)
        return begin(root, step)

    monkeypatch.setattr(Attempt, "begin", counted)
    return begun


@pytest.mark.parametrize(("call", "number"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("rename", errno.EROFS)])
def test_a_failed_save_beside_training_is_a_warning(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The storage refuses step 10: nothing of it is left, step 5 stands, training continues, and step 12 is saved."""
    real, saving = getattr(os, call), [0]

    def refused(first: Any, *rest: Any) -> Any:
        if saving[0] == 10 and threading.current_thread() is not threading.main_thread():
            saving[0] = 0
            raise OSError(number, os.strerror(number))
        return real(first, *rest)

    _patched(monkeypatch, lambda step: saving.__setitem__(0, step))
    monkeypatch.setattr(os, call, refused)
    done = run(texts, (KEPT, BESIDE, "train.steps=12"), tmp_path, data_root)
    assert {path.name for path in done.checkpoints.iterdir()} == {"LATEST", "step-00000005", "step-00000012"}
    assert len(losses(done)) == 12
    text = done.rank_log(0).read_text()
    assert re.search(rf"step 10 was not saved, training continues: .*step-00000010.*: {os.strerror(number)}\n", text)


def test_without_memory_for_a_copy_training_waits_for_the_save(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = Cpu.copy_to_host, {}

    def copy(device: Cpu, tensor: torch.Tensor) -> torch.Tensor:
        if 5 not in threads:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(device, tensor)

    monkeypatch.setattr(Cpu, "copy_to_host", copy)
    _patched(monkeypatch, lambda step: threads.update({step: threading.current_thread() is threading.main_thread()}))
    done = run(texts, (KEPT, BESIDE, "train.steps=12"), tmp_path, data_root)
    assert threads == {5: True, 10: False, 12: True}
    assert set(_steps(done)) == {"step-00000005", "step-00000010", "step-00000012"}
    assert "step 5: training waits for the save, because its state was not copied: Def" in done.rank_log(0).read_text()


def test_a_run_that_ends_for_its_loss_keeps_the_save_in_flight(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 13 is bad while step 10 is being written, which takes longer."""
    poison({"nan": [8 * 12]}, monkeypatch.setattr)

    def slow(step: int) -> None:
        while step == 10 and len(losses(RunDir(tmp_path))) < 12:
            time.sleep(0.01)
        time.sleep(0.5 * (step == 10))

    _patched(monkeypatch, slow)
    with pytest.raises(LossError, match="not finite at step 13"):
        run(texts, (KEPT, BESIDE, "device.log_every=1"), tmp_path, data_root)
    assert committed_steps(RunDir(tmp_path).checkpoints) == [5, 10]


@pytest.mark.parametrize(
    ("error", "limit", "steps"),
    [
        (ValueError("a broken sample"), 60.0, [5, 10]),
        (ValueError("a broken sample"), 0.01, [5]),  # a save that does not end holds up nothing
        (RuntimeError("Connection closed by peer"), 60.0, [5]),  # no save is committed without all ranks
    ],
)
def test_a_failed_rank_waits_for_the_save_in_flight(
    texts: Texts,
    data_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    limit: float,
    steps: list[int],
) -> None:
    """Step 13 fails while step 10 is being written, which takes until the failure or, for 10 and 5, longer."""
    failed, ended, real = threading.Event(), threading.Event(), loop._step
    writers: list[threading.Thread] = []

    def step(run: Any, now: Any, *more: Any) -> str:
        if now.step == 12:
            failed.set()
            raise error
        return real(run, now, *more)

    def slow(step: int) -> None:
        if step == 10:
            writers.append(threading.current_thread())
            failed.wait(60)
            if steps == [5]:
                ended.wait(60)

    monkeypatch.setattr(loop, "_step", step)
    monkeypatch.setattr(loop, "LAST_SAVE_SECONDS", limit)
    _patched(monkeypatch, slow)
    with pytest.raises(type(error), match=str(error)):
        run(texts, (KEPT, BESIDE), tmp_path, data_root)
    assert committed_steps(RunDir(tmp_path).checkpoints) == steps
    ended.set()
    (writer,) = writers
    writer.join(60)  # the end of a real process would end it


def test_pruning_by_hand_leaves_the_save_in_flight(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While step 16 is being written, a person keeps the newest two, and a second job cleans up what dead ones left."""
    begin = Attempt.begin
    seen: list[Any] = []

    def begin_and_prune(root: Path, step: int) -> Attempt:
        attempt = begin(root, step)
        if step == 16:
            there = checkpoints.tier_at(tmp_path)
            names = checkpoints.superseded_of(there, {"last": 2})["names"]
            seen.append(checkpoints.prune(there, {"last": 2}, names)["names"])
            seen.append(Store(root, log=lambda line: None).steps())
        return attempt

    monkeypatch.setattr(Attempt, "begin", begin_and_prune)
    done = run(texts, (KEPT, BESIDE, "checkpoint.every=4"), tmp_path, data_root, StopAfter(17))
    assert seen == [["step-00000004"], [8, 12]]
    assert committed_steps(done.checkpoints) == [8, 12, 16, 17]


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
