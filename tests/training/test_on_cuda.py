"""One card computes what the processor computes, continues exactly, and keeps its results with every key."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.training.inprocess import StopAfter, Texts, losses, run, same
from training.checkpoint.read import open_checkpoint
from training.run.directory import RunDir

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: run on a machine with one")
CARD = ("device.type=cuda", "train.steps=12", "train.eval_every=100", "checkpoint.every=4")
WIDE = (
    "model.hidden_size=256", "model.intermediate_size=512", "model.num_hidden_layers=3", "sequence_length=256",
    "parallel.micro_batch_size=4", "train.learning_rate=1e-3",
)  # fmt: skip
FP32 = ("device.precision=fp32", "device.attention=eager", "device.compile=off")
FAST = ("device.precision=bf16", "device.attention=auto", "device.compile=on")
LONG = ("train.steps=400", "checkpoint.every=50")
BF16 = 0.02  # of a loss: what products in bf16 may change


def _tensors(done: RunDir, step: int) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(done.checkpoints / f"step-{step:08d}")
    return {name: checkpoint.full(name) for name in checkpoint.names()}


def test_the_card_computes_the_processors_losses(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    card = run(texts, (*CARD, *WIDE, *FP32), tmp_path / "card", data_root)
    here = run(texts, (*CARD, *WIDE, *FP32, "device.type=cpu"), tmp_path / "here", data_root)
    assert losses(card) == pytest.approx(losses(here), rel=1e-4)


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("parallel.activation_checkpointing=selective",),
        ("parallel.activation_checkpointing=full",),
        ("parallel.activation_checkpointing=budget:0.5",),
        ("parallel.activation_checkpointing=offload",),
        ("train.moment_precision=bf16",),
        ("device.attention=sdpa",),
        ("device.compile=off", "device.attention=sdpa"),
    ],
    ids=lambda more: ", ".join(more) or "as it is",
)
def test_compiled_bf16_follows_fp32(texts: Texts, data_root: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    exact = run(texts, (*CARD, *WIDE, *FP32), tmp_path / "exact", data_root)
    fast = run(texts, (*CARD, *WIDE, *FAST, *more), tmp_path / "fast", data_root)
    assert losses(fast) == pytest.approx(losses(exact), rel=BF16)


def test_attention_without_a_mask_follows_fp32(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    joined = (*CARD, *WIDE, "data.document_mask=false")
    exact = run(texts, (*joined, *FP32), tmp_path / "exact", data_root)
    fast = run(texts, (*joined, *FAST), tmp_path / "fast", data_root)
    assert losses(fast) == pytest.approx(losses(exact), rel=BF16)
    assert losses(exact) != losses(run(texts, (*CARD, *WIDE, *FP32), tmp_path / "masked", data_root))


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_float8_follows_bf16(texts: Texts, data_root: Path, tmp_path: Path, recipe: str) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed: .venv/bin/uv pip install torchao==0.18.*")
    given = (*CARD, *WIDE, *FAST, "model.hidden_size=1280", "model.intermediate_size=2304")  # smaller ones stay in bf16
    plain = run(texts, given, tmp_path / "plain", data_root)
    rounded = run(texts, (*given, f"device.float8={recipe}"), tmp_path / recipe, data_root)
    assert losses(rounded) == pytest.approx(losses(plain), rel=0.05)
    assert losses(rounded) != losses(plain), "no product was rounded"


@pytest.mark.parametrize("saves", ["false", "true"], ids=["waits", "asynchronous"])
def test_a_stopped_run_continues_exactly(texts: Texts, data_root: Path, tmp_path: Path, saves: str) -> None:
    """Parameters, both moments and the position, through a checkpoint that a stop has written."""
    given = (*CARD, *WIDE, *FAST, f"checkpoint.asynchronous={saves}", "device.attention=sdpa")
    whole = run(texts, given, tmp_path / "whole", data_root)
    part = run(texts, given, tmp_path / "part", data_root, StopAfter(8))
    assert len(losses(part)) == 8
    run(texts, given, tmp_path / "part", data_root)
    assert losses(part) == losses(whole)
    assert same(_tensors(whole, 12), _tensors(part, 12))


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_nccl_and_a_forked_rank(start: Callable, sharding: str) -> None:
    """A killed rank of a job as in a pod is forked again, and continues with NCCL."""
    job = start(
        sharding, overrides=(*CARD, *WIDE, *FAST, *LONG, f"parallel.sharding={sharding}"), restarts=1, entrypoint=True
    )
    job.until(lambda: len(job.records()) >= 7, 240)
    forked = Path(f"/proc/{job.workers()[0]}/comm").read_text().strip() == "rank 0"
    assert forked or importlib.util.find_spec("torchao"), "torchao sets up CUDA where it is imported"
    os.kill(job.workers()[0], signal.SIGKILL)
    assert job.wait(300) == 0, job.text()
    assert job.records()[-1]["step"] == 400
    assert [one["class"] for one in job.failures()] == ["killed"]
    assert all(math.isfinite(loss) for loss in job.losses())


def test_a_card_that_is_not_there_is_named(start: Callable) -> None:
    job = start("two", nproc=torch.cuda.device_count() + 1, overrides=(*CARD, *FP32))
    assert job.wait() != 0
    assert "nprocPerNode must not exceed" in job.text()
    assert "config" in {one["class"] for one in job.failures()}
