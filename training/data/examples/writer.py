"""Writes one split of examples: their tokens, the learned ones among them, and the packed samples."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.examples.encode import Encoded
from training.data.examples.packing import alone, pack
from training.data.index import FileEntry, Split
from training.data.token_shards import SplitWriter, entry_of


def learned_file(split: str) -> str:
    """Name of the file of learned spans, uint64 [2, spans]: first and end in the split's token stream."""
    return f"{split}-learned.npy"


def order_file(split: str) -> str:
    """Name of the file of the examples' numbers in the order of their samples, uint64 [examples]."""
    return f"{split}-order.npy"


def samples_file(split: str) -> str:
    """Name of the file of each sample's first place in that order, uint64 [samples + 1]."""
    return f"{split}-samples.npy"


class ExampleWriter:
    """Appends examples to a split. `label_counts` counts the learned tokens by id, [vocabulary]."""

    def __init__(self, directory: Path, split: str, dtype: str, vocabulary: int) -> None:
        self._directory, self._split = directory, split
        self._tokens = SplitWriter(directory, split, dtype, vocabulary)
        self._lengths = array("q")
        self._spans: list[npt.NDArray[np.uint64]] = []
        self._position = 0
        self.label_counts = np.zeros(vocabulary, dtype=np.int64)
        self.samples = 0
        self.files: dict[str, FileEntry] = {}

    def __enter__(self) -> ExampleWriter:
        self._tokens.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.__exit__()

    @property
    def examples(self) -> int:
        return len(self._lengths)

    @property
    def tokens(self) -> int:
        return self._position

    def append(self, examples: Sequence[Encoded]) -> None:
        """Append at least one example."""
        lengths = [len(example.tokens) for example in examples]
        tokens = np.concatenate([example.tokens for example in examples])
        self._tokens.append(lengths, tokens, sum(example.size for example in examples))
        spans = []
        for example in examples:
            spans.append(_spans(example.learned) + np.uint64(self._position))
            self._lengths.append(len(example.tokens))
            self._position += len(example.tokens)
        self._spans.append(np.concatenate(spans, axis=1))
        labels = np.concatenate([example.tokens[1:][example.learned[1:]] for example in examples])
        self.label_counts += np.bincount(labels, minlength=len(self.label_counts))

    def finish(self, sequence_length: int, packing: bool) -> Split:
        """Pack the examples into samples and write all files; return the split's description."""
        split = self._tokens.finish()
        samples = pack(self._lengths, sequence_length) if packing else list(alone(self.examples))
        self.samples = len(samples)
        self.files = dict(self._tokens.files)
        self._save(learned_file(self._split), np.concatenate(self._spans, axis=1))
        self._save(order_file(self._split), np.concatenate([np.array(sample) for sample in samples]))
        self._save(samples_file(self._split), np.cumsum([0, *map(len, samples)]))
        return split

    def _save(self, name: str, array: npt.NDArray[Any]) -> None:
        np.save(self._directory / name, array.astype("<u8"))
        self.files[name] = entry_of(self._directory / name)


def _spans(learned: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Return the runs of True as [2, runs] of first and end."""
    edges = np.flatnonzero(np.diff(learned.astype(np.int8), prepend=0, append=0))
    return edges.reshape(-1, 2).T.astype(np.uint64)
