"""Reads prepared examples: a sample contains one or more examples, each a separate document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError
from training.data.examples.writer import learned_file, order_file, samples_file
from training.data.sampler import PADDING
from training.data.token_dataset import NO_LABEL, Batch, TokenDataset

_Array = npt.NDArray[np.int64]
_PARTS = 16


@dataclass(frozen=True)
class ExampleBatch(Batch):
    """A batch of examples: a label means that the next token is learned; `read` tokens are not padding.

    labelled: [positions], those of all labels, counted through the batch; None if it is not worthwhile to know them.
    """

    read: int
    labelled: _Array | None = None

    def arrays(self) -> dict[str, _Array]:
        return super().arrays() | ({} if self.labelled is None else {"labelled": self.labelled})

    def tokens(self) -> int:
        """Tokens of the examples, learned or not."""
        return self.read

    def counts(self) -> tuple[int, ...]:
        """One loss, over the positions with a label."""
        return (int((self.labels != NO_LABEL).sum()),)


class ExampleDataset:
    """One split of prepared examples as samples of a fixed length. Its files are memory-mapped."""

    def __init__(self, stream: TokenDataset, split: str, sequence_length: int) -> None:
        self._stream, self.sequence_length = stream, sequence_length
        self.directory = stream.directory
        self._learned, self._order, self._samples = (
            np.load(self.directory / name(split), mmap_mode="r") for name in (learned_file, order_file, samples_file)
        )
        learned = int((self._learned[1] - self._learned[0]).sum())
        self._mostly_labelled = learned > len(self) * sequence_length * (1 - 1 / _PARTS)

    @classmethod
    def open(cls, directory: Path, split: str, sequence_length: int) -> ExampleDataset:
        """Open the split "train" or "heldout" of a dataset directory; checks the index and the files' sizes.

        Raises DataError if the directory is not an intact dataset of examples.
        """
        stream = TokenDataset.open(directory, split, 1)
        try:
            return cls(stream, split, sequence_length)
        except (OSError, ValueError) as error:
            raise DataError(f"dataset {directory}: split '{split}' has no examples: {error}") from error

    def __len__(self) -> int:
        return len(self._samples) - 1

    @property
    def digest(self) -> str:
        """Digest of the dataset's content; on resume a different digest means different data."""
        return self._stream.digest

    @property
    def tokens(self) -> int:
        """Number of tokens in the split's examples."""
        return self._stream.tokens

    @property
    def unigram_nats(self) -> float:
        """Entropy in nats of the held-out learned tokens, also for the training split."""
        return self._stream.unigram_nats

    def examples(self, index: int) -> list[tuple[_Array, npt.NDArray[np.bool_]]]:
        """Return the examples of a sample: token ids and whether each is learned, both [tokens]."""
        first, end = self._samples[index : index + 2].tolist()
        return [self._example(number) for number in self._order[first:end].tolist()]

    def _example(self, number: int) -> tuple[_Array, npt.NDArray[np.bool_]]:
        start, end = self._stream.document(number)
        learned = np.zeros(end - start, dtype=bool)
        # With a key of another type numpy would convert the whole array.
        span = int(np.searchsorted(self._learned[1], np.uint64(start), side="right"))
        while span < self._learned.shape[1] and self._learned[0, span] < end:
            first, last = self._learned[:, span].tolist()
            learned[first - start : last - start] = True
            span += 1
        return self._stream.read(start, end - start), learned

    def batch(self, indices: npt.ArrayLike, _epochs: npt.ArrayLike | None = None) -> ExampleBatch:
        """Read the samples of these indices, [samples]; PADDING gives a row without labels.

        A sample is the same in every epoch. The rest of a sample is a separate document without labels.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        if np.any((chosen < PADDING) | (chosen >= len(self))):
            raise IndexError(f"sample indices {chosen.min()} to {chosen.max()} are not all in [0, {len(self)})")
        shape = len(chosen), self.sequence_length
        ids, labels = np.zeros(shape, np.int64), np.full(shape, NO_LABEL, np.int64)
        positions, documents = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        read = 0
        for row, sample in enumerate(chosen.tolist()):
            at = 0
            examples = [] if sample == PADDING else self.examples(sample)
            for document, (tokens, learned) in enumerate(examples):
                end = at + len(tokens)
                ids[row, at:end] = tokens
                labels[row, at : end - 1] = np.where(learned[1:], tokens[1:], NO_LABEL)
                positions[row, at:end] = np.arange(len(tokens))
                documents[row, at:end] = document
                at = end
            positions[row, at:] = np.arange(self.sequence_length - at)
            documents[row, at:] = len(examples)
            read += at
        labelled = None if self._mostly_labelled else positions_of(labels)
        return ExampleBatch(ids, labels, positions, documents, read, labelled)


def positions_of(labels: _Array) -> _Array:
    """Return the positions of all labels in [samples, sequence length], counted through it, in their order.

    Positions without a label fill it up to a sixteenth of them all, so that few sizes occur.
    """
    flat = labels.ravel()
    known, others = np.flatnonzero(flat != NO_LABEL), np.flatnonzero(flat == NO_LABEL)
    part = -(-len(flat) // _PARTS)
    size = max(1, -(-len(known) // part)) * part
    return np.sort(np.concatenate([known, others[: size - len(known)]]))
