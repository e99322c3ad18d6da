"""Runs of the trainer inside the test's process, for tests that need no second rank."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from training import pretrain
from training.checkpoint.read import newest
from training.config import apply_override, load_texts
from training.device import cpu
from training.distributed.process import Attempt
from training.run.directory import RunDir
from training.run.failure import Drained
from training.task import Task
from training.trainer import loop

PEAK = 1e11  # FLOP/s
Texts = Mapping[str, tuple[str, str]]


class Quiet(Attempt):
    """An attempt that does not change the test process's signal handlers."""

    def listen(self) -> None:
        pass


class StopAfter(Quiet):
    """Requests a stop after a step, like a SIGTERM at that moment."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._last = step

    @property
    def stop_requested(self) -> bool:
        return self.step is not None and self.step >= self._last

    @stop_requested.setter
    def stop_requested(self, value: bool) -> None:
        assert not value


def run(
    texts: Texts,
    overrides: tuple[str, ...],
    directory: Path,
    data_root: Path,
    attempt: Attempt | None = None,
    task: Task = pretrain.TASK,
) -> RunDir:
    """Train in this process as the only rank; a requested stop is not an error here.

    The processor's peak is not measured: that takes longer than the steps, and test_device.py measures it.
    """
    for override in overrides:
        texts = apply_override(texts, override)
    directory.mkdir(parents=True, exist_ok=True)
    target = RunDir(directory)
    try:
        with mock.patch.object(cpu, "matmul_peak", return_value=PEAK):
            loop.train(task, load_texts(texts), target, data_root, attempt or Quiet())
    except Drained:
        assert isinstance(attempt, StopAfter)
    finally:
        for handler in list(loop.log.handlers):
            loop.log.removeHandler(handler)
            if isinstance(handler, logging.FileHandler):
                handler.close()
    return target


def records(run_dir: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_dir.metrics.read_text().splitlines()]


def losses(run_dir: RunDir) -> list[float]:
    return [record["loss"] for record in records(run_dir)]


def tensors(run_dir: RunDir, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, torch.Tensor]:
    """Whole tensors of the newest checkpoint: weights, moments, counts."""
    checkpoint = newest(run_dir.checkpoints)
    assert checkpoint is not None
    return {name: checkpoint.full(name) for name in checkpoint.names() if wanted(name)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bitwise equality of two sets of named tensors."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
