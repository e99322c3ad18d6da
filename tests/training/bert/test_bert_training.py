"""Runs of training.bert: the same curve however batches are divided, bitwise equal after a stop."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training import inprocess
from tests.training.inprocess import StopAfter, Texts, losses, records, same, tensors
from training.bert import TASK
from training.config import apply_override, load_texts
from training.data.indexed_feed import IndexedFeed
from training.distributed.process import Attempt
from training.distributed.ranks import Ranks
from training.prepare.bert import splits_of
from training.run.directory import RunDir

MODULE = "training.bert"
CALM = ("model.attention_dropout=0.0", "model.bert.hidden_dropout=0.0")
LAMB = (
    "train.optimizer=lamb",
    "train.learning_rate=0.05",
    "train.schedule=polynomial",
    "train.schedule_power=0.5",
)


def run(
    texts: Texts, overrides: tuple[str, ...], directory: Path, data_root: Path, attempt: Attempt | None = None
) -> RunDir:
    return inprocess.run(texts, overrides, directory, data_root, attempt, TASK)


@pytest.fixture(scope="module", params=["adamw", "lamb"])
def optimizer(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Overrides for the optimizer and its published schedule."""
    return LAMB if request.param == "lamb" else ()


@pytest.fixture(scope="module")
def alone(
    texts: Texts, data_root: Path, tmp_path_factory: pytest.TempPathFactory, optimizer: tuple[str, ...]
) -> RunDir:
    """12 steps without dropout on one process: 8 samples a step in one micro batch."""
    overrides = (*CALM, *optimizer, "parallel.micro_batch_size=8")
    return run(texts, overrides, tmp_path_factory.mktemp("alone"), data_root)


def parts(run_dir: RunDir) -> list[tuple[float, float, float]]:
    return [(r["loss"], r["mlm_loss"], r["nsp_loss"]) for r in records(run_dir)]


def test_losses_start_at_those_of_guessing_and_fall(alone: RunDir) -> None:
    first, *_, last = records(alone)
    assert first["mlm_loss"] == pytest.approx(math.log(512), rel=0.03)
    assert first["nsp_loss"] == pytest.approx(math.log(2), rel=0.1)
    assert first["loss"] == pytest.approx(math.log(512) + math.log(2), rel=0.03)
    assert last["loss"] < first["loss"] - 0.5
    report = json.loads(alone.report.read_text())
    assert report["heldout_loss"] < report["ln_vocab_and_ln_2"] == pytest.approx(math.log(512) + math.log(2))


def test_every_step_has_its_losses_rate_and_speed(alone: RunDir) -> None:
    """The values that the tutorials of the published recipes print; they are also in the log line."""
    for line in records(alone):
        assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"])
        assert line["sequences_per_s"] == pytest.approx(8 / line["step_s"])
        assert 0 < line["tokens"] <= 8 * 32
        assert line["lr"] > 0
    said = alone.rank_log(0).read_text()
    assert " mlm " in said
    assert " nsp " in said
    assert " sequences/s" in said
    assert "held-out loss" in said


def test_accumulation_changes_nothing(
    alone: RunDir, texts: Texts, data_root: Path, tmp_path: Path, optimizer: tuple[str, ...]
) -> None:
    """Micro batches have unequal numbers of masked words; each word counts as much as in one batch."""
    overrides = (*CALM, *optimizer, "parallel.micro_batch_size=2")
    divided = run(texts, overrides, tmp_path, data_root)
    assert [x for row in parts(divided) for x in row] == pytest.approx(
        [x for row in parts(alone) for x in row], rel=1e-4
    )


@pytest.mark.long
@pytest.mark.timeout(400)
def test_two_ranks_change_nothing(alone: RunDir, start: Callable, optimizer: tuple[str, ...]) -> None:
    """AdamW with whole models, LAMB with sharded ones, whose norms are over all shards."""
    sharding = "fsdp" if optimizer else "ddp"
    overrides = (*CALM, *optimizer, f"parallel.sharding={sharding}")
    job = start("two", nproc=2, overrides=overrides, module=MODULE)
    assert job.wait(300) == 0, job.text()
    assert job.losses() == pytest.approx(losses(alone), rel=1e-4)


def test_a_stopped_run_continues_bitwise(
    texts: Texts, data_root: Path, tmp_path: Path, optimizer: tuple[str, ...]
) -> None:
    """With dropout: losses of all later steps, weights, moments; masks depend on the position only."""
    whole = run(texts, optimizer, tmp_path / "whole", data_root)
    run(texts, optimizer, tmp_path / "stopped", data_root, StopAfter(7))
    resumed = run(texts, optimizer, tmp_path / "stopped", data_root)
    assert parts(resumed) == parts(whole)
    assert same(tensors(resumed), tensors(whole))
    assert (
        json.loads(resumed.report.read_text())["heldout_loss"] == (json.loads(whole.report.read_text())["heldout_loss"])
    )


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.timeout(900)
def test_a_killed_rank_costs_nothing(start: Callable) -> None:
    """SIGKILL of one of two sharded ranks, with LAMB and dropout: after the restart the bits are the same."""
    overrides = (*LAMB, "parallel.sharding=fsdp", "checkpoint.every=3")
    calm = start("calm", nproc=2, overrides=overrides, module=MODULE)
    assert calm.wait(300) == 0, calm.text()
    struck = start("struck", nproc=2, overrides=overrides, restarts=1, module=MODULE, entrypoint=True)
    struck.until(lambda: len(struck.records()) >= 5, 300)
    os.kill(struck.workers()[1], 9)
    assert struck.wait(300) == 0, struck.text()
    assert "continuing from step" in (struck.run / "logs" / "rank-00000.log").read_text()
    assert struck.losses() == calm.losses()
    assert same(tensors(RunDir(struck.run)), tensors(RunDir(calm.run)))


def test_held_out_samples_are_the_same_for_every_seed(texts: Texts, dataset: Path) -> None:
    """Models with different seeds are evaluated on the same pairs and masks, but train on different ones."""
    one, two = (
        [split.batch(range(4), [0] * 4).arrays()["input_ids"].tolist() for split in splits_of(config, dataset)]
        for config in (load_texts(texts), load_texts(apply_override(texts, "train.seed=8")))
    )
    assert one[1] == two[1]
    assert one[0] != two[0]


@pytest.mark.long
def test_a_very_large_batch_is_the_sum_of_its_parts(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    """128 micro batches of one sample give the same steps as one of 128 samples."""
    overrides = (*CALM, "train.global_batch_size=128", "train.steps=2", "train.warmup_steps=0")
    divided, whole = (
        run(texts, (*overrides, f"parallel.micro_batch_size={size}"), tmp_path / str(size), data_root)
        for size in (1, 128)
    )
    assert losses(divided) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.long
def test_a_very_large_batch_needs_hardly_more_memory(texts: Texts, dataset: Path) -> None:
    """A rank's share of 65,536 samples on 16 ranks, all held in one step: 4 bytes per token and mask."""
    large = (*CALM, "train.global_batch_size=65536", "parallel.micro_batch_size=64")
    changed = texts
    for override in large:
        changed = apply_override(changed, override)
    config, ranks = load_texts(changed), Ranks(3, 16, 3, None)
    feed = IndexedFeed(*splits_of(config, dataset), config, ranks, {})
    feed.batches(0)  # what is imported at the first use does not count
    tracemalloc.start()
    batches = feed.batches(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(batches) == 64
    assert peak < 1.5 * 4096 * 4 * (32 + 2 * 6 + 3)
