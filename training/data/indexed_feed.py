"""A feed over prepared datasets. Arithmetic gives the samples of a step, so its only state is a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from training.config import Config
from training.data.sampler import PADDING, Indices, heldout_batches, micro_batches, samples_at
from training.distributed.ranks import Ranks
from training.task import Batch


class Samples(Protocol):
    """One split of a prepared dataset, read at random."""

    @property
    def directory(self) -> Path: ...
    @property
    def digest(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, indices: npt.ArrayLike, epochs: npt.ArrayLike) -> Batch:
        """The samples of these indices, [samples], each as in its epoch; PADDING is a row without labels."""
        ...


class IndexedFeed:
    """A training and a held-out split, divided over ranks by position."""

    def __init__(
        self, train: Samples, heldout: Samples, config: Config, ranks: Ranks, reference: dict[str, float]
    ) -> None:
        self.train, self._heldout = train, heldout
        self._config, self._ranks = config, ranks
        self.reference = reference

    @property
    def digest(self) -> str:
        return self.train.digest

    @property
    def directory(self) -> Path:
        return self.train.directory

    def describe(self) -> str:
        length = self._config.sequence_length
        return f"{self.train.tokens:,} training tokens in {len(self.train):,} samples of {length}"

    def batches(self, position: int) -> list[Batch]:
        """Read the step that starts at `position`; every epoch has its own order of samples."""
        recipe, ranks = self._config.train, self._ranks
        steps = micro_batches(
            position, recipe.global_batch_size, self._config.parallel.micro_batch_size,
            ranks.data_rank, ranks.data_size,
        )  # fmt: skip
        return [self._read(places) for places in steps]

    def _read(self, places: Indices) -> Batch:
        size, known = len(self.train), np.maximum(places, 0)
        chosen = np.where(places == PADDING, PADDING, samples_at(known, self._config.train.seed, size))
        return self.train.batch(chosen, known // size)

    def heldout(self, sequences: int) -> Iterator[Batch]:
        """Read the held-out samples, always as in epoch 0."""
        ranks = self._ranks
        for indices in heldout_batches(
            sequences, self._config.parallel.micro_batch_size, ranks.data_rank, ranks.data_size,
            len(self._heldout),
        ):  # fmt: skip
            yield self._heldout.batch(indices, np.zeros_like(indices))

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, position: int, writers: int, state_of: Callable[[int], dict[str, Any]]) -> None:
        """Nothing to do: a position needs no other state."""

    def close(self) -> None:
        """Nothing to do: mapped files close with the process."""
