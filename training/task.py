"""What the loop needs of a training task: its data, its model, its losses, its report.

`training.trainer.loop` is the same for all tasks. A task is one object of each entry point
(`training.pretrain`, `training.finetune`, `training.bert`) that says where these four come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        """What each of the task's losses is divided by: its number of predictions in this batch."""
        ...

    def tokens(self) -> int:
        """Tokens of this batch that speed is counted in; padding does not count."""
        ...


class Feed(Protocol):
    """What a rank reads: the micro batches of any step, and the held-out ones."""

    @property
    def digest(self) -> str:
        """Digest of the data's content or, for a stream, of what defines it: another digest, another run."""
        ...

    @property
    def directory(self) -> Path:
        """Where the prepared data lies, with its tokenizer."""
        ...

    @property
    def reference(self) -> dict[str, float]:
        """Losses in nats that a model without skill has on the held-out data, by name, for the report."""
        ...

    def describe(self) -> str:
        """The data in words: documents, tokens, samples."""
        ...

    def batches(self, position: int) -> list[Batch]:
        """This rank's micro batches of the step that starts at a sample position: one per accumulation."""
        ...

    def heldout(self, sequences: int) -> Iterable[Batch]:
        """This rank's share of the held-out samples; equally many batches of equal shape on every rank."""
        ...

    def state(self) -> dict[str, Any]:
        """What this rank needs besides the position to go on exactly; empty where the position says all."""
        ...

    def restore(self, position: int, writers: int, state_of: Callable[[int], dict[str, Any]]) -> None:
        """Go on at a position of a checkpoint of so many ranks; `state_of` reads what one of them saved."""
        ...

    def close(self) -> None:
        """End threads and files."""
        ...


class Trainable(nn.Module):
    """A model as the loop sees it. `hf` is transformers' own model inside it.

    Calling it with a batch's arrays returns its loss sums, fp32 [number of losses]; the step's loss is the
    sum of each divided by its count over the global batch.
    """

    hf: Any

    def blocks(self) -> list[nn.Module]:
        """The repeated layers: compiled, sharded and recomputed one by one."""
        raise NotImplementedError

    def compile_outside(self) -> None:
        """Compile what is worth it outside the blocks."""


class Task(Protocol):
    """One entry point's part of a run."""

    @property
    def module(self) -> str:
        """The module's name: `training.pretrain`."""
        ...

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the model's loss sums, in its order."""
        ...

    def open(self, config: Config, ranks: Ranks, data: Path, run: RunDir, say: Callable[[str], None]) -> Feed:
        """The data, prepared under `data` when it is not there yet, on all ranks together, for one run."""
        ...

    def build(self, config: Config, device: Device) -> Trainable:
        """The model on meta; what is not trained has no `requires_grad` and is of the type it keeps."""
        ...

    def initialise(self, model: Trainable, config: Config, device: torch.device, ranks: Ranks) -> None:
        """Give memory and values to every parameter and buffer, sharded or whole."""
        ...

    def origin(self, config: Config) -> dict[str, Any]:
        """What the initial weights were (`{"weights": digest}`), for run.json; a change makes another run."""
        ...

    def samples(self, config: Config, directory: RunDir) -> list[dict[str, str]]:
        """Texts for the report from the committed checkpoint: `prompt`, `text`, and what belongs to them."""
        ...
