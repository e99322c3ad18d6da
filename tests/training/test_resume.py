"""After any stop a run continues bitwise: all next losses and the final weights are the same."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.accounts import accounted
from tests.training.inprocess import StopAfter, Texts, losses, run, same, tensors
from training.checkpoint.read import newest
from training.config import ConfigError, apply_override, load_texts
from training.run import ledger
from training.run.directory import RunDir, last_records
from training.trainer import loop, same_run, state

# Dropout, so that the random generators matter.
DROPOUT = ("model.attention_dropout=0.1",)


@pytest.fixture(scope="module")
def undisturbed(texts: Texts, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """20 steps without a stop."""
    return run(texts, DROPOUT, tmp_path_factory.mktemp("undisturbed"), data_root)


def _stopped_and_resumed(texts: Texts, data_root: Path, directory: Path, without: str | None = None) -> RunDir:
    """Stop at step 7, continue in a new state to step 20 without one part of the saved state."""
    run(texts, DROPOUT, directory, data_root, StopAfter(7))
    assert newest(directory / "checkpoints").step == 7  # type: ignore[union-attr]
    parts = dict(state.PARTS)
    if without is not None:
        if without == "optimizer":
            _forget_moments(parts)
        else:
            parts[without] = replace(parts[without], restore=lambda now, saved: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "PARTS", parts)
        return run(texts, DROPOUT, directory, data_root)


def _forget_moments(parts: dict[str, state.Part]) -> None:
    """Load into tensors that are then dropped, so that the optimizer starts with empty moments."""
    whole = parts["optimizer"].tensors

    def dropped(now: state.TrainState) -> state.Named:
        named = whole(now)
        if now.step == 0:  # restoring, not saving
            now.optimizer.state.clear()
        return named

    parts["optimizer"] = replace(parts["optimizer"], tensors=dropped)


def test_a_stopped_run_continues_bitwise(undisturbed: RunDir, texts: Texts, data_root: Path, tmp_path: Path) -> None:
    resumed = _stopped_and_resumed(texts, data_root, tmp_path)
    assert losses(resumed) == losses(undisturbed)
    assert same(tensors(resumed), tensors(undisturbed))


def test_a_kill_between_a_save_and_its_evaluation_loses_no_heldout_loss(
    undisturbed: RunDir, texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            run(texts, DROPOUT, tmp_path, data_root)
    assert newest(tmp_path / "checkpoints").step == 10  # type: ignore[union-attr]
    resumed = run(texts, DROPOUT, tmp_path, data_root)
    assert losses(resumed) == losses(undisturbed)
    known = [[(one["step"], one["loss"]) for one in last_records(each.heldout)] for each in (undisturbed, resumed)]
    assert known[0] == known[1]
    assert [step for step, _ in known[0]] == [10, 20]


@pytest.mark.parametrize("part", ["optimizer", "schedule", "rng", "data"])
def test_control_each_part_of_the_state_matters(
    undisturbed: RunDir, texts: Texts, data_root: Path, tmp_path: Path, part: str
) -> None:
    resumed = _stopped_and_resumed(texts, data_root, tmp_path, without=part)
    assert len(losses(resumed)) == 20
    assert losses(resumed)[7:17] != losses(undisturbed)[7:17]
    assert not same(tensors(resumed), tensors(undisturbed))


@pytest.fixture(scope="module")
def two_ranks() -> tuple[str, ...]:
    return (*DROPOUT, "parallel.micro_batch_size=2", "train.steps=40", "train.eval_every=20")


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.parametrize("beside", [False, True])
def test_a_killed_worker_costs_nothing(start: Callable, two_ranks: tuple[str, ...], beside: bool) -> None:
    """SIGKILL of one rank at a random step: the group is forked again and ends with the same bits."""
    two_ranks = (*two_ranks, f"checkpoint.asynchronous={str(beside).lower()}")
    calm = start("calm", nproc=2, overrides=two_ranks)
    assert calm.wait() == 0, calm.text()
    struck = start("struck", nproc=2, overrides=two_ranks, restarts=1, entrypoint=True)
    step = random.Random(11).randint(8, 25)
    struck.until(lambda: len(struck.records()) >= step)
    victim = struck.workers()[1]
    os.kill(victim, signal.SIGKILL)
    assert struck.wait() == 0, struck.text()
    assert victim not in struck.workers()
    assert "continuing from step" in (struck.run / "logs" / "rank-00000.log").read_text()  # it really restarted
    assert [r["step"] for r in struck.records()] == list(range(1, 41))
    assert struck.losses() == calm.losses()
    assert same(tensors(RunDir(struck.run)), tensors(RunDir(calm.run)))
    for job, lost in ((struck, True), (calm, False)):
        book = ledger.of(ledger.read(RunDir(job.run), 40))
        assert accounted(book) > 0
        assert (book.totals["lost to redo"] > 0, book.restarts) == (lost, int(lost))


@pytest.mark.long
@pytest.mark.smoke
def test_sigterm_saves_the_same_step_on_all_ranks_and_loses_none(start: Callable, two_ranks: tuple[str, ...]) -> None:
    job = start("drained", nproc=2, overrides=(*two_ranks, "checkpoint.every=1000", "train.steps=400"))
    job.until(lambda: len(job.records()) >= 6)
    job.process.send_signal(signal.SIGTERM)
    job.process.send_signal(signal.SIGTERM)  # asking twice changes nothing
    assert job.wait() != 0
    records, reasons = job.records(), job.failures()
    assert {reason["class"] for reason in reasons} == {"drained"}
    assert {reason["rank"] for reason in reasons} == {0, 1}
    stopped = {reason["step"] for reason in reasons}
    checkpoint = newest(job.run / "checkpoints")
    assert checkpoint is not None
    assert stopped == {checkpoint.step} == {records[-1]["step"]}
    assert checkpoint.world_size == 2
    steps = checkpoint.step + 3
    again = start("drained", nproc=2, overrides=(*two_ranks, "checkpoint.every=1000", f"train.steps={steps}"))
    assert again.wait() == 0, again.text()
    assert [r["step"] for r in again.records()] == list(range(1, steps + 1))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_compiled_blocks_with_dropout_continue_bitwise(
    start: Callable, texts: Texts, data_root: Path, tmp_path: Path
) -> None:
    """Compiled code draws its dropout from the same generators, which are saved and restored."""
    overrides = (*DROPOUT, 'device.compile="on"', "checkpoint.every=1000", "train.steps=200")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    calm = start("calm", overrides=overrides, **cache)
    assert calm.wait(600) == 0, calm.text()
    assert "blocks compiled" in calm.text()
    first = start("stopped", overrides=overrides, **cache)
    first.until(lambda: len(first.records()) >= 6, 300)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() != 0
    assert 6 <= len(first.records()) < 200, "it ended before it was stopped"
    again = start("stopped", overrides=overrides, **cache)
    assert again.wait(300) == 0, again.text()
    assert again.losses() == calm.losses()
    assert same(tensors(RunDir(again.run)), tensors(RunDir(calm.run)))
    without = run(texts, ("train.steps=200",), tmp_path / "without", data_root)
    assert losses(without) != pytest.approx(calm.losses(), rel=1e-3), "the dropout drops nothing"


@pytest.mark.long
@pytest.mark.smoke
def test_another_number_of_ranks_continues_with_the_same_samples(
    start: Callable, texts: Texts, data_root: Path
) -> None:
    """2 sharded ranks, then 1: the curve is the undisturbed one up to rounding."""
    first = start("shrunk", nproc=2, overrides=("parallel.sharding=fsdp", "train.steps=10"))
    assert first.wait() == 0, first.text()
    second = run(texts, ("train.steps=20",), first.run, data_root)
    whole = run(texts, ("train.steps=10",), first.run.with_name("whole"), data_root)
    whole = run(texts, ("train.steps=20",), whole.path, data_root)
    assert losses(second) == pytest.approx(losses(whole), rel=1e-4)


def test_a_run_directory_refuses_another_model(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    run(texts, ("train.steps=3",), tmp_path, data_root)
    with pytest.raises(ConfigError, match=r"model\.hidden_size was 64, is 32"):
        run(texts, ("model.hidden_size=32",), tmp_path, data_root)
    with pytest.raises(ConfigError, match=r"train\.seed was 7, is 9"):
        run(texts, ("train.seed=9",), tmp_path, data_root)


@pytest.mark.parametrize(
    "key", ["retry.most=1", "nodes={min: 1, max: 2}", "train.check_replicas_every=9", "parallel.sharding=fsdp"]
)
def test_how_the_job_runs_may_change(texts: Texts, key: str) -> None:
    before, now = (load_texts(apply_override(texts, key) if changed else texts) for changed in (False, True))
    same = (before.model_dump(mode="json"), now, "data", "data", "here")
    assert key.partition("=")[0].partition(".")[0] in same_run.check_same_run(*same)[0]


@pytest.mark.parametrize(
    ("now", "refused"),
    [
        ("train.steps=30", None),  # the missing keys have their defaults
        ("data.document_mask=false", r"data\.document_mask was True, is False"),
        ("train.optimizer=lamb", r"train\.optimizer was 'adamw', is 'lamb'"),
        ("data.stream={}", r"data\.stream"),
    ],
)
def test_a_run_of_an_older_trainyard_continues(texts: Texts, now: str, refused: str | None) -> None:
    """Its run.json lacks the keys that are newer than it."""
    first = load_texts(texts).model_dump(mode="json")
    del first["data"]["document_mask"], first["train"]["optimizer"], first["data"]["stream"]
    given = (first, load_texts(apply_override(texts, now)), "data", "data", "here")
    if refused is None:
        assert same_run.check_same_run(*given) == ["train.steps was 20, is 30"]
        return
    with pytest.raises(ConfigError, match=refused):
        same_run.check_same_run(*given)


def test_a_finished_run_stops_at_once_unless_steps_are_raised(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    done = run(texts, ("train.steps=4",), tmp_path, data_root)
    report, metrics = done.report.read_bytes(), done.metrics.read_bytes()
    run(texts, ("train.steps=4",), tmp_path, data_root)
    assert (done.report.read_bytes(), done.metrics.read_bytes()) == (report, metrics)
    run(texts, ("train.steps=6",), tmp_path, data_root)
    assert len(losses(done)) == 6
    assert done.report.read_bytes() != report


def test_a_lost_report_is_written_again(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    done = run(texts, ("train.steps=4",), tmp_path, data_root)
    before = done.report.read_bytes()
    done.report.unlink()
    run(texts, ("train.steps=4",), tmp_path, data_root)
    assert done.report.read_bytes() == before
