"""BERT's micro batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_LABEL = -100
_Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """One sample: its tokens, the start of its second sentence, the masked positions and their labels.

    `random_next` is 1 if the second sentence comes from another document, 0 if it follows the first.
    """

    tokens: npt.NDArray[np.integer]
    second: int
    positions: npt.NDArray[np.integer]
    labels: npt.NDArray[np.integer]
    random_next: int


@dataclass(frozen=True)
class PairBatch:
    """Samples in the fixed shapes that compiled code needs; widened to int64 only for the model.

    ids: [samples, sequence length], with the pad token after each sample's `lengths`.
    positions, labels: [samples, most]; unused entries have position 0 and NO_LABEL.
    random_next: [samples]; NO_LABEL in a padding row, which does not count.
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    random_next: npt.NDArray[np.int32]

    def arrays(self) -> dict[str, _Array]:
        """The model's arguments: transformers' names for the input, and the masked positions."""
        places = np.arange(self.ids.shape[1])
        filled = places < self.lengths[:, None]
        return {
            "input_ids": self.ids.astype(np.int64),
            "token_type_ids": (filled & (places >= self.seconds[:, None])).astype(np.int64),
            "attention_mask": filled.astype(np.int64),
            "masked_positions": self.positions.astype(np.int64),
            "masked_labels": self.labels.astype(np.int64),
            "next_sentence_label": self.random_next.astype(np.int64),
        }

    def counts(self) -> tuple[int, ...]:
        """Number of predicted tokens and of predicted pairs."""
        return int((self.labels != NO_LABEL).sum()), int((self.random_next != NO_LABEL).sum())

    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int(self.lengths[self.random_next != NO_LABEL].sum())


def collate(samples: list[Sample], counted: npt.NDArray[np.bool_], length: int, most: int, pad: int) -> PairBatch:
    """Collate samples; rows that are not `counted` keep their text and lose their labels."""
    rows = len(samples)
    ids = np.full((rows, length), pad, dtype=np.int32)
    positions = np.zeros((rows, most), dtype=np.int32)
    labels = np.full((rows, most), NO_LABEL, dtype=np.int32)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.tokens)] = sample.tokens
        if counted[row]:
            positions[row, : len(sample.positions)] = sample.positions
            labels[row, : len(sample.labels)] = sample.labels
    return PairBatch(
        ids,
        np.array([len(sample.tokens) for sample in samples], dtype=np.int32),
        np.array([sample.second for sample in samples], dtype=np.int32),
        positions,
        labels,
        np.where(counted, [sample.random_next for sample in samples], NO_LABEL).astype(np.int32),
    )
