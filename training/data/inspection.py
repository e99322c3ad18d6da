"""Statistics of a prepared dataset: documents, tokens, lengths, and the share that packing leaves unused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.bert.files import read_flat
from training.data.bert.hdf5 import KIND as MASKED
from training.data.bert.pairs import FRAME, runs_file, sentences_file
from training.data.bert.prepare_pairs import KIND as PAIRS
from training.data.errors import DataError, reason
from training.data.index import Index, check_sizes, read_index


@dataclass(frozen=True)
class SplitReport:
    """One split. Lengths are tokens of a document, its frame included.

    histogram: pairs (n, documents of n/2 < length <= n) for powers of two, from the shortest to the longest.
    samples: samples of the sequence length.
    waste: share of the samples' positions that hold no token, or of the tokens that no sample holds. For
    sentence pairs it counts consecutive sentences; a second sentence from elsewhere is at most as long.
    padded: share of positions that would be empty if each document had its own rows.
    """

    documents: int
    bytes: int
    tokens: int
    shortest: int
    median: float
    longest: int
    histogram: list[tuple[int, int]]
    samples: int
    waste: float
    padded: float


@dataclass(frozen=True)
class Report:
    """A dataset: its index with source and settings, and its splits."""

    index: Index
    sequence_length: int
    splits: dict[str, SplitReport]


def inspect(directory: Path, sequence_length: int | None = None) -> Report:
    """Read a dataset's index and its documents' starts, but no shards.

    `sequence_length` is used if the dataset was not made for one. Raises DataError.
    """
    index = read_index(directory)
    check_sizes(directory, index)
    made_for = index.settings.get("sequence_length")
    if made_for and sequence_length and made_for != sequence_length:
        raise DataError(f"dataset {directory} was made for a sequence length of {made_for} only")
    length = made_for or sequence_length or 1024
    try:
        splits = {name: _split(directory, index, name, length) for name in index.splits}
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise DataError(f"dataset {directory}: cannot read the documents' starts: {why}") from error
    return Report(index, length, splits)


def _split(directory: Path, index: Index, name: str, length: int) -> SplitReport:
    split = index.splits[name]
    starts = np.load(directory / split.starts, mmap_mode="r").astype(np.int64)
    lengths = np.diff(starts, append=split.tokens)
    samples, waste = _packing(directory, index, name, length)
    rows = -(-lengths // length)
    return SplitReport(
        documents=split.documents,
        bytes=split.bytes,
        tokens=split.tokens,
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        longest=int(lengths.max()),
        histogram=_histogram(lengths),
        samples=samples,
        waste=waste,
        padded=1 - split.tokens / float(rows.sum() * length),
    )


def _packing(directory: Path, index: Index, name: str, length: int) -> tuple[int, float]:
    """Return the number of samples and the waste."""
    split, kind = index.splits[name], index.settings.get("kind")
    if f"{name}-samples.npy" in index.files:  # examples, already packed into samples
        samples = len(np.load(directory / f"{name}-samples.npy", mmap_mode="r")) - 1
        return samples, 1 - split.tokens / (samples * length)
    if kind == MASKED:
        return split.documents, 1 - split.tokens / (split.documents * length)
    if kind == PAIRS:
        runs = read_flat(directory / runs_file(name), "<u8", 2)
        starts = read_flat(directory / sentences_file(name), "<u8").astype(np.int64)
        filled = np.minimum(starts[runs[:, 1]] - starts[runs[:, 0]], length - FRAME) + FRAME
        return len(runs), 1 - int(filled.sum()) / (len(runs) * length)
    samples = max(0, split.tokens - 1) // length
    return samples, 1 - samples * length / split.tokens


def _histogram(lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    exponents = np.ceil(np.log2(np.maximum(lengths, 1))).astype(int)
    first = int(exponents.min())
    return [(1 << (first + n), int(count)) for n, count in enumerate(np.bincount(exponents - first))]
