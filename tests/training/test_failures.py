"""Failures of a run: bad input, values that are not finite, a full disk; one record and one class each."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.training.inprocess import Texts, losses, run
from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import newest
from training.checkpoint.tiers import Tiers
from training.checkpoint.write import Snapshot
from training.config import ConfigError
from training.data.errors import DataError
from training.data.examples.formats import BadRow
from training.distributed.process import Attempt
from training.export import ExportError
from training.run.directory import RunDir
from training.run.exit_status import exit_in_words
from training.run.failure import CODES, Drained, LossError, UploadError, classify, record
from training.trainer import main
from training.weights import WeightsError


def test_a_loss_that_is_not_finite_stops_before_it_is_saved(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    wild = ("train.learning_rate=1.0e+30", "train.warmup_steps=0", "checkpoint.every=1")
    with pytest.raises(LossError, match=r"not finite at step \d"):
        run(texts, wild, tmp_path, data_root)
    last = newest(tmp_path / "checkpoints")
    assert last is not None
    assert all(torch.isfinite(last.full(n)).all() for n in last.names())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("x"), "config"),
        (DataError("x"), "data"),
        (LossError("nan", 1, "x"), "nan"),
        (Drained("x"), "drained"),
        (CheckpointError("x"), "storage"),
        (UploadError("connection reset by peer"), "upload"),
        (WeightsError("x"), "config"),
        (BadRow("x"), "data"),
        (OSError(28, "No space left on device"), "storage"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (
            RuntimeError("[../gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:1"),
            "lost peer",
        ),
        (RuntimeError("NCCL error: unhandled system error"), "communication"),
        (RuntimeError("shape mismatch"), "error"),
        (ExportError("CUDA out of memory"), "out of memory"),
    ],
)
def test_classes_of_failure(error: BaseException, kind: str) -> None:
    """An error that carries its class keeps it, whatever it says; its text decides for the others."""
    assert kind in CODES
    assert classify(error) == kind


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-200, "was killed by signal 200"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert exit_in_words(code) == words


def test_a_failure_record_names_rank_step_and_cause(tmp_path: Path) -> None:
    try:
        raise LossError("nan", 5, "the loss of rank 1 is not finite at step 5")
    except LossError as error:
        path = record(error, 1, 5, RunDir(tmp_path))
    saved = json.loads(path.read_text())
    assert path.name.endswith("-rank-00001.json")
    assert (saved["class"], saved["rank"], saved["step"]) == ("nan", 1, 5)
    assert "test_failures.py" in saved["traceback"]


def test_a_rank_that_fails_before_its_logs_are_open_says_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("trainyard")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)
    assert main._fail(ConfigError("no such key"), 1, Attempt(), RunDir(tmp_path)) == CODES["config"]
    assert capsys.readouterr().err == "rank 1: config: no such key\n"


@pytest.mark.parametrize(
    ("override", "kind", "says"),
    [
        ("parallel.micro_batch_size=8", "config", "cannot be divided into micro batches of 8 on 2 ranks"),
        ("data.source=/nowhere/at/all", "data", "/nowhere/at/all"),
    ],
)
def test_bad_input_is_one_record_per_rank_without_traceback(
    start: Callable, override: str, kind: str, says: str
) -> None:
    job = start("bad", nproc=2, overrides=(override,), launcher="training.pod.launcher")
    assert job.wait() == 1  # torchrun's code for every failure
    causes = [f for f in job.failures() if f["class"] not in ("lost peer", "communication")]
    assert causes
    assert {c["class"] for c in causes} == {kind}
    assert says in causes[0]["message"]
    assert "Traceback" not in job.text().split("torch/distributed/run.py")[0].split("Traceback (most recent")[0]


def test_a_failed_checkpoint_is_a_warning_and_training_continues(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[int] = []
    real = Tiers.save

    def failing_once(tiers: Tiers, given: Snapshot, *, must: bool) -> None:
        saves.append(given.step)
        if len(saves) == 1:
            raise CheckpointError("rank 0 could not write: No space left on device")
        real(tiers, given, must=must)

    monkeypatch.setattr(Tiers, "save", failing_once)
    done = run(texts, ("train.steps=12",), tmp_path, data_root)
    assert saves == [5, 10, 12]
    assert len(losses(done)) == 12
    assert "step 5 was not saved" in done.rank_log(0).read_text()


def test_a_failed_last_checkpoint_ends_the_run(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(tiers: Tiers, given: Snapshot, *, must: bool) -> None:
        raise CheckpointError("rank 0 could not write: No space left on device")

    monkeypatch.setattr(Tiers, "save", failing)
    with pytest.raises(CheckpointError, match="No space left"):
        run(texts, ("train.steps=3",), tmp_path, data_root)
    assert not (tmp_path / "report.json").exists()


def test_stop_requests_count_only_after_the_loop_listens() -> None:
    """Before that nothing can be lost, and a rank blocked in the rendezvous must not hold up the others."""
    before = signal.getsignal(signal.SIGTERM)
    attempt = Attempt()
    assert signal.getsignal(signal.SIGTERM) is before
    try:
        attempt.listen()
        assert not attempt.stop_requested
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert attempt.stop_requested
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_configuration_of_another_entry_point_is_refused(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.finetune does: model\.weights is set"):
        run(texts, ("model.weights=/somewhere",), tmp_path, data_root)


@pytest.mark.long
def test_a_compilation_may_take_longer_than_a_collective(start: Callable) -> None:
    """The other ranks wait for rank 0's compiler in short collectives, so that none of them times out."""
    few = ("device.compile=on", "train.steps=2", "train.warmup_steps=1", "train.eval_sequences=2")
    job = start("slow", nproc=2, overrides=few, module="tests.training.slow_compile")
    assert job.wait(300) == 0, job.text()
    assert len(job.records()) == 2
