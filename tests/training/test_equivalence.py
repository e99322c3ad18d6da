"""The same run on one or two ranks, sharded or not, accumulated or not, gives the same curve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.inprocess import StopAfter, Texts, losses, records, run, same, tensors


@pytest.fixture(scope="module")
def alone(texts: Texts, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """20 steps on one process: 8 samples a step in one micro batch."""
    directory = tmp_path_factory.mktemp("alone")
    return losses(run(texts, ("parallel.micro_batch_size=8",), directory, data_root))


def test_accumulation_changes_nothing(alone: list[float], texts: Texts, data_root: Path, tmp_path: Path) -> None:
    accumulated = losses(run(texts, ("parallel.micro_batch_size=4",), tmp_path, data_root))
    assert len(accumulated) == 20
    assert accumulated == pytest.approx(alone, rel=1e-4)


@pytest.mark.long
def test_gradients_summed_in_bf16_change_little(alone: list[float], start: Callable) -> None:
    job = start("half", nproc=2, overrides=("parallel.sharding=fsdp", "parallel.reduce_precision=bf16"))
    assert job.wait() == 0, job.text()
    assert job.losses() != pytest.approx(alone, rel=1e-4)
    assert job.losses() == pytest.approx(alone, rel=1e-2)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_ranks_change_nothing(alone: list[float], start: Callable, sharding: str) -> None:
    """DDP by plain torchrun, FSDP with forked ranks."""
    launcher = {"ddp": "torch.distributed.run", "fsdp": "training.pod.launcher"}[sharding]
    overrides = (f"parallel.sharding={sharding}", "parallel.micro_batch_size=2")
    job = start(sharding, nproc=2, overrides=overrides, launcher=launcher)
    assert job.wait() == 0, job.text()
    assert "FutureWarning" not in job.output.read_text()
    assert job.losses() == pytest.approx(alone, rel=1e-4)
    assert all(len(record["rank_step_s"]) == 2 for record in job.records())


@pytest.mark.long
@pytest.mark.parametrize(("reshard", "gathers"), [("false", 1 + 1 + 1), ("true", 8 + 4 + 4)], ids=["kept", "freed"])
def test_gathered_weights_are_kept_over_micro_batches(
    alone: list[float], start: Callable, reshard: str, gathers: int
) -> None:
    """Of four micro batches only the first gathers two blocks and the rest, before its forward pass.

    In the control the first block is gathered in all eight passes, when it is needed. The last one and the rest stay
    for backward.
    """
    overrides = (
        "parallel.sharding=fsdp", "parallel.micro_batch_size=1", f"parallel.reshard_after_forward={reshard}",
        "train.steps=3", "checkpoint.every=50", "train.eval_every=50",
    )  # fmt: skip
    job = start("kept", nproc=2, overrides=overrides, module="tests.training.gathers")
    assert job.wait() == 0, job.text()
    steps = json.loads((job.run / "gathers.json").read_text())
    assert [step["c10d._allgather_base_"] for step in steps] == [gathers] * 3
    assert [step["ahead"] for step in steps] == [3 if reshard == "false" else 0] * 3
    assert [step["c10d.alltoall_base_"] for step in steps] == [3] * 3
    assert job.losses() == pytest.approx(alone[:3], rel=1e-4)


def test_bf16_computes_over_fp32_masters(alone: list[float], texts: Texts, data_root: Path, tmp_path: Path) -> None:
    overrides = ("parallel.micro_batch_size=8", "device.precision=bf16")
    done = run(texts, overrides, tmp_path, data_root)
    assert losses(done) != alone
    assert losses(done) == pytest.approx(alone, rel=0.02)
    assert {tensor.dtype for tensor in tensors(done).values()} == {torch.float32}


def test_moments_in_bf16_change_little(alone: list[float], texts: Texts, data_root: Path, tmp_path: Path) -> None:
    """The curve is near, moments are stored in bf16, and a stopped run continues bitwise."""
    overrides = ("parallel.micro_batch_size=8", "train.moment_precision=bf16")
    done = run(texts, overrides, tmp_path / "whole", data_root)
    assert losses(done) != alone
    assert losses(done) == pytest.approx(alone, rel=0.01)
    kinds = {name.rpartition(".")[2]: tensor.dtype for name, tensor in tensors(done).items() if "exp_avg" in name}
    assert kinds == {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
    run(texts, overrides, tmp_path / "stopped", data_root, StopAfter(7))
    resumed = run(texts, overrides, tmp_path / "stopped", data_root)
    assert losses(resumed) == losses(done)
    assert same(tensors(resumed), tensors(done))


def test_control_another_seed_is_another_curve(
    alone: list[float], texts: Texts, data_root: Path, tmp_path: Path
) -> None:
    other = losses(run(texts, ("train.seed=8", "train.steps=5"), tmp_path, data_root))
    assert other != pytest.approx(alone[:5], rel=1e-4)


def test_the_curve_falls_and_every_step_has_its_line(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    done = run(texts, ("sample.prompts=[abc]", "sample.max_new_tokens=4"), tmp_path, data_root)
    lines = records(done)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    for line in lines:
        assert 0 < line["mfu"] < 1
        assert line["tokens_per_s"] == pytest.approx(line["tokens"] / line["step_s"])
        assert line["tokens"] <= 8 * 32
    events = EventAccumulator(str(done.tensorboard)).Reload()
    assert [one.step for one in events.Scalars("loss/train")] == list(range(1, 21))
    assert events.Scalars("loss/heldout")[-1].step == 20
    tensors_of = events.Tags()["tensors"]
    assert {"run/text_summary", "custom_scalars__config__"} <= set(tensors_of), "settings, and a chart of both losses"
    settings = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"train.learning_rate" in settings
    assert {"_hparams_/experiment", "_hparams_/session_end_info"} <= set(events.summary_metadata)
    assert "in nats" in events.SummaryMetadata("loss/heldout").summary_description
    (sample,) = events.Tensors("samples/0/text_summary")
    assert (sample.step, b"abc" in sample.tensor_proto.string_val[0]) == (20, True)
