"""Reads a prepared dataset: sample i is the tokens [i*T, i*T + T) of a split, its labels one further."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError, nearest, reason
from training.data.index import Index, check_sizes, read_index
from training.data.mapped_split import MappedSplit
from training.data.sampler import PADDING

NO_LABEL = -100
_Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Arrays of int64, all [samples, sequence length].

    labels: the next token; NO_LABEL if that begins another document, and in a padding row.
    position_ids: count from 0 at each document's start and at the sample's start.
    document_ids: 0, 1, 2, ... within the sample; tokens may attend to earlier ones with the same number.
    """

    input_ids: _Array
    labels: _Array
    position_ids: _Array
    document_ids: _Array

    def arrays(self) -> dict[str, _Array]:
        """The model's arguments by name."""
        return {
            "input_ids": self.input_ids,
            "labels": self.labels,
            "position_ids": self.position_ids,
            "document_ids": self.document_ids,
        }

    def counts(self) -> tuple[int, ...]:
        """One loss, over the positions with a label."""
        return (self.tokens(),)

    def tokens(self) -> int:
        """Positions with a label."""
        return int((self.labels != NO_LABEL).sum())


class TokenDataset(MappedSplit):
    """One split of a prepared dataset as samples of a fixed length. Its files are memory-mapped."""

    def __init__(self, directory: Path, index: Index, split: str, sequence_length: int) -> None:
        super().__init__(directory, index, split)
        self.sequence_length = sequence_length
        self._starts: npt.NDArray[Any] = np.load(directory / self._split.starts, mmap_mode="r")

    @classmethod
    def open(cls, directory: Path, split: str, sequence_length: int) -> TokenDataset:
        """Open the split "train" or "heldout" of a dataset directory; checks the index and the files' sizes.

        Raises DataError if the directory is not an intact dataset or the split is shorter than one sample.
        """
        directory = Path(directory)
        index = read_index(directory)
        check_sizes(directory, index)
        if split not in index.splits:
            raise DataError(f"dataset {directory} has no split '{split}'{nearest(split, index.splits)}")
        tokens = index.splits[split].tokens
        if sequence_length < 1 or tokens < sequence_length + 1:
            raise DataError(
                f"dataset {directory}: split '{split}' has {tokens:,} tokens, too few for one sample of "
                f"{sequence_length:,} tokens and its last label"
            )
        try:
            return cls(directory, index, split, sequence_length)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise DataError(f"dataset {directory}: cannot map split '{split}': {why}") from error

    def __len__(self) -> int:
        """Number of samples, without the rest that is shorter than a sample and its last label."""
        return (self._split.tokens - 1) // self.sequence_length

    @property
    def vocab_size(self) -> int:
        """The tokenizer's largest id plus one; every token is below it."""
        return self._index.vocabulary

    @property
    def unigram_nats(self) -> float:
        """Entropy in nats of the held-out tokens, also for the training split."""
        return self._index.unigram_nats

    def batch(self, indices: npt.ArrayLike, _epochs: npt.ArrayLike | None = None) -> Batch:
        """Read the samples of these indices, [samples]; PADDING gives a row without labels.

        A sample is the same in every epoch.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        if np.any((chosen < PADDING) | (chosen >= len(self))):
            raise IndexError(f"sample indices {chosen.min()} to {chosen.max()} are not all in [0, {len(self)})")
        length = self.sequence_length
        first = np.maximum(chosen, 0) * length
        tokens = np.stack([self.read(start, length + 1) for start in first.tolist()])
        offsets = first[:, None] + np.arange(length + 1)
        # With another type than the starts' own, numpy would convert all of them at every call.
        documents = np.searchsorted(self._starts, offsets.astype(self._starts.dtype), side="right") - 1
        begins = np.maximum(self._starts[documents[:, :-1]].astype(np.int64), first[:, None])
        unlabelled = (documents[:, 1:] != documents[:, :-1]) | (chosen < 0)[:, None]
        return Batch(
            input_ids=tokens[:, :-1],
            labels=np.where(unlabelled, NO_LABEL, tokens[:, 1:]),
            position_ids=offsets[:, :-1] - begins,
            document_ids=documents[:, :-1] - documents[:, :1],
        )

    def document(self, number: int) -> tuple[int, int]:
        """Return a document's first position in the split's token stream, and the position after its last."""
        start, end = self._starts[number], self._starts[number + 1 : number + 2]
        return int(start), int(end[0]) if len(end) else self.tokens

    def read(self, start: int, count: int) -> _Array:
        """Return the tokens [start, start + count) of the split, from one or more shards."""
        return self._shards.read(start, count)
