"""The interface of a training task: its data, its model, its losses, its report.

`training.trainer.loop` is the same for all tasks. Each entry point (`training.pretrain`, `training.finetune`,
`training.bert`) has one task object that provides these four.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from training.config import Config
from training.device import Device
from training.distributed.ranks import Ranks
from training.run.directory import RunDir


class Batch(Protocol):
    """One micro batch of one rank, on the host."""

    def arrays(self) -> dict[str, npt.NDArray[np.int64]]:
        """The model's keyword arguments, each [samples, ...]."""
        ...

    def counts(self) -> tuple[int, ...]:
        """For each of the task's losses the number of predictions in this batch, by which it is divided."""
        ...

    def tokens(self) -> int:
        """Number of tokens in this batch without padding, for the speed."""
        ...


class Feed(Protocol):
    """A rank's data: the micro batches of any step, and the held-out ones."""

    @property
    def digest(self) -> str:
        """Digest of the data's content or, for a stream, of its definition; a run cannot change it."""
        ...

    @property
    def directory(self) -> Path:
        """The directory of the prepared data and its tokenizer."""
        ...

    @property
    def reference(self) -> dict[str, float]:
        """Baselines for the report, by name: held-out losses in nats of models without skill."""
        ...

    def describe(self) -> str:
        """The data in words: documents, tokens, samples."""
        ...

    def batches(self, position: int) -> list[Batch]:
        """This rank's micro batches of the step that starts at a sample position."""
        ...

    def heldout(self, sequences: int) -> Iterable[Batch]:
        """This rank's share of the held-out samples; every rank gets equally many batches of equal shape."""
        ...

    def state(self) -> dict[str, Any]:
        """What this rank needs besides the position to continue exactly; empty if the position is enough."""
        ...

    def restore(self, position: int, writers: int, state_of: Callable[[int], dict[str, Any]]) -> None:
        """Continue at a position of a checkpoint by `writers` ranks; `state_of` reads one rank's state."""
        ...

    def close(self) -> None:
        """Stop threads and close files."""
        ...


class Trainable(nn.Module):
    """A model for the loop. `hf` is transformers' model inside it.

    Called with a batch's arrays it returns its loss sums, fp32 [number of losses]. The step's loss is the sum
    over these, each divided by its count over the global batch.
    """

    hf: Any
    keeping: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    """A context around the blocks' forward pass, which decides where their activations are kept."""

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, which are compiled, sharded and recomputed one by one."""
        raise NotImplementedError

    def compile_outside(self) -> None:
        """Compile the parts outside the blocks that benefit."""


class Task(Protocol):
    """The part of a run that differs between entry points."""

    @property
    def module(self) -> str:
        """The module's name: `training.pretrain`."""
        ...

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the model's loss sums, in their order."""
        ...

    def open(self, config: Config, ranks: Ranks, data: Path, run: RunDir, say: Callable[[str], None]) -> Feed:
        """Open a run's data, on all ranks together; prepare it below the run if it is not under `data`."""
        ...

    def build(self, config: Config, device: Device) -> Trainable:
        """Build the model on meta; frozen parameters have no `requires_grad` and their final dtype."""
        ...

    def initialise(self, model: Trainable, config: Config, device: torch.device, ranks: Ranks) -> None:
        """Give memory and values to every parameter and buffer, sharded or not."""
        ...

    def origin(self, config: Config) -> dict[str, Any]:
        """The origin of the initial weights (`{"weights": digest}`), for run.json; a run cannot change it."""
        ...

    def samples(self, config: Config, directory: RunDir) -> list[dict[str, str]]:
        """Texts for the report from the committed checkpoint: `prompt`, `text` and further columns."""
        ...
