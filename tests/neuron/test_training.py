"""The trainer on XLA: the loss of plain CPU, one process and two, no graph compiled late, exact resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.neuron.conftest import ROOT, Ended, Trainer
from training.checkpoint.read import newest
from training.run.directory import RunDir
from training.run.failure import CODES

pytestmark = [pytest.mark.neuron, pytest.mark.timeout(1800)]

ON_CPU = {"device.type": "cpu"}
WITH_DROPOUT = {"model.attention_dropout": 0.1, "model.bert.hidden_dropout": 0.1}
WARM = 2  # steps after which every graph has been seen: the optimizer's first step has a graph of its own
TOLERANCE = 0.005

Train = Callable[..., Ended]


def records(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    checkpoint = newest(run.checkpoints)
    assert checkpoint is not None
    return {name: checkpoint.full(name) for name in checkpoint.names()}


@pytest.fixture(scope="module")
def on_cpu(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses of plain CPU runs, one process, in the same environment."""
    root = tmp_path_factory.mktemp("cpu")
    curves = {}
    for model in ("llama-tiny", "bert-tiny"):
        ended = train(root / model, model, given=ON_CPU)
        assert ended.code == 0, ended.output
        curves[model] = [record["loss"] for record in records(ended.run)]
    return curves


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", ["llama-tiny", "bert-tiny"])
def test_losses_are_those_of_plain_cpu_and_no_graph_is_late(
    train: Train, on_cpu: dict[str, list[float]], tmp_path: Path, model: str, ranks: int
) -> None:
    """24 steps of the trn1 cell made small; two ranks read half of each batch and exchange gradients.

    Without dropout, for which each device has a generator of its own.
    """
    ended = train(tmp_path / "run", model, ranks)
    assert ended.code == 0, ended.output
    assert f"{ranks} ranks on XLA's CPU client" in ended.output
    found = records(ended.run)
    assert [record["step"] for record in found] == list(range(1, 25))
    pairs = list(zip((record["loss"] for record in found), on_cpu[model], strict=True))
    assert max(abs(xla - cpu) / cpu for xla, cpu in pairs) <= TOLERANCE
    assert found[-1]["loss"] < 0.9 * found[0]["loss"]
    compiled = [record["graphs_compiled"] for record in found]
    assert compiled[0] >= 2, "the counter does not count"
    assert compiled[WARM:] == [0] * (24 - WARM)


def test_a_stopped_run_goes_on_bit_for_bit(start: Trainer, train: Train, tmp_path: Path) -> None:
    """SIGTERM in the middle, with dropout: exit 143, a checkpoint, then the weights of an undisturbed run."""
    whole = train(tmp_path / "whole", "bert-tiny", given={"train.steps": 40, **WITH_DROPOUT})
    assert whole.code == 0, whole.output
    broken = tmp_path / "broken"
    process = start(broken, "bert-tiny", given={"train.steps": 40, **WITH_DROPOUT})
    deadline = time.monotonic() + 600
    while process.poll() is None and not list((broken / "checkpoints").glob("step-00000008")):
        assert time.monotonic() < deadline, "no checkpoint within 600 s"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 143, output
    stopped = newest(broken / "checkpoints")
    assert stopped is not None
    assert 8 <= stopped.step < 40
    again = train(broken, "bert-tiny", given={"train.steps": 40, **WITH_DROPOUT})
    assert again.code == 0, again.output
    assert f"continuing from step {stopped.step}" in again.output
    expected, found = weights(whole.run), weights(again.run)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_what_a_compiler_extracts_leaves_nothing_behind(train: Train, tmp_path: Path) -> None:
    """neuron_parallel_compile sees two steps. Neither metrics nor checkpoints are written."""
    ended = train(tmp_path / "run", "llama-tiny", NEURON_EXTRACT_GRAPHS_ONLY="1")
    assert ended.code == 0, ended.output
    assert "the compiler has seen the graphs" in ended.output
    assert records(ended.run) == []
    assert newest(ended.run.checkpoints) is None
    assert not ended.run.report.exists()


@pytest.mark.parametrize(
    ("environment", "given", "message"),
    [
        ({"PJRT_DEVICE": "NEURON"}, {}, "this machine has no Neuron device"),
        ({"PJRT_DEVICE": "TPU"}, {}, "PJRT_DEVICE is 'TPU'"),
        ({}, {"parallel.sharding": "fsdp"}, "neuron supports whole replicas only"),
        ({}, {"device.attention": "sdpa"}, "nearest value: eager"),
        ({}, {"device.compile": '"on"'}, "nearest value: off"),
    ],
)
def test_what_neuron_cannot_do_is_one_error(
    train: Train, tmp_path: Path, environment: dict[str, str], given: dict[str, str], message: str
) -> None:
    ended = train(tmp_path / "run", "llama-tiny", given=given, **environment)
    assert ended.code == CODES["config"]
    assert message in ended.output
    assert "Traceback" not in ended.output


def test_gradients_are_exchanged_inside_the_graph_where_replicas_know_each_other(python: Path) -> None:
    """XLA's own all-reduce over two devices of one process: its CPU client's processes are strangers."""
    command = [str(python), "-m", "tests.neuron.exchange_in_graph"]
    environ = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    mean = "[[1.5, 1.5, 1.5], [5.0, 5.0, 5.0, 5.0]]"
    assert sorted(done.stdout.splitlines()) == [f"replica 0 2 {mean}", f"replica 1 2 {mean}"]
