"""Samples of two sentences from a prepared dataset; each depends on (seed, epoch, sample) only.

Sample i is a run of whole sentences of one document that fills a sequence. In each epoch it is cut in two
at the end of a random sentence. With a probability of one half the second part is replaced by sentences of
another document, from a random one on: the model has to tell which (Devlin et al. 2018, task 2 of 3.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.bert.batch import PairBatch, Sample, collate
from training.data.bert.files import FlatWriter, read_flat
from training.data.bert.masking import Rules, mask
from training.data.bert.wordpiece import Vocabulary
from training.data.index import FileEntry, Index
from training.data.mapped_split import MappedSplit

FRAME = 3  # [CLS] first [SEP] second [SEP]
_Ids = npt.NDArray[np.int64]


def runs_of(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Cut a document with sentences of these lengths into runs [first, last + 1) that fill `room` tokens.

    A run has at least two sentences. A single last sentence forms a run with the one before it, which is
    then in two runs. A document of one sentence has no run.
    """
    ends = list(accumulate(lengths))
    count, first, runs = len(ends), 0, []
    while count > 1 and first < count:
        first = min(first, count - 2)
        before = ends[first - 1] if first else 0
        last = min(max(bisect_left(ends, before + room), first + 1), count - 1)
        runs.append((first, last + 1))
        first = last + 1
    return runs


def cut_to(first: int, second: int, room: int, draw: np.random.Generator) -> tuple[slice, slice]:
    """Return the tokens to keep of two sentences of these lengths, so that both together fit into `room`.

    The longer one loses tokens until they are equal, then both do. Each token is taken from the beginning or
    the end with equal probability, as in BERT's own preparation.
    """
    excess = max(0, first + second - room)
    low, high = min(first, second), max(first, second)
    from_high = min(excess, high - low)
    rest = excess - from_high
    given = (from_high + (rest + 1) // 2, rest // 2)
    of_first, of_second = given if first >= second else given[::-1]
    front_first, front_second = draw.binomial(of_first, 0.5), draw.binomial(of_second, 0.5)
    return (
        slice(front_first, first - (of_first - front_first)),
        slice(front_second, second - (of_second - front_second)),
    )


class SentencePairs(MappedSplit):
    """One split as sentence pairs. `seed` determines cuts, second sentences and masks."""

    def __init__(
        self,
        directory: Path,
        index: Index,
        split: str,
        length: int,
        rules: Rules,
        vocabulary: Vocabulary,
        seed: int,
    ) -> None:
        super().__init__(directory, index, split)
        self._starts = read_flat(directory / sentences_file(split), "<u8")  # [sentences + 1], in tokens
        self._documents = read_flat(directory / documents_file(split), "<u8")  # [documents + 1], in sentences
        self._runs = read_flat(directory / runs_file(split), "<u8", 2)  # [samples, 2], in sentences
        self._length, self._rules, self._vocabulary, self._seed = length, rules, vocabulary, seed

    def __len__(self) -> int:
        return len(self._runs)

    def batch(self, indices: npt.ArrayLike, epochs: npt.ArrayLike) -> PairBatch:
        """Make the samples of these indices, [samples]; PADDING gives a row without labels."""
        chosen, times = np.asarray(indices, dtype=np.int64), np.asarray(epochs, dtype=np.int64)
        samples = [self.sample(max(i, 0), e) for i, e in zip(chosen.tolist(), times.tolist(), strict=True)]
        return collate(samples, chosen >= 0, self._length, self._rules.most, self._vocabulary.pad)

    def sample(self, index: int, epoch: int) -> Sample:
        """One pair in an epoch, masked."""
        draw = np.random.default_rng((self._seed, epoch, index))
        first, second, random_next = self._pair(index, draw)
        words = self._vocabulary
        tokens = np.concatenate([[words.cls], first, [words.sep], second, [words.sep]])
        positions, labels = mask(tokens, self._rules, words, draw)
        return Sample(tokens, len(first) + 2, positions, labels, int(random_next))

    def _pair(self, index: int, draw: np.random.Generator) -> tuple[_Ids, _Ids, bool]:
        begin, end = map(int, self._runs[index])
        cut = begin + int(draw.integers(1, end - begin))
        room = self._length - FRAME
        first = self._span(begin, cut)
        random_next = bool(draw.random() < 0.5)
        second = self._elsewhere(begin, room - (first[1] - first[0]), draw) if random_next else self._span(cut, end)
        kept_first, kept_second = cut_to(first[1] - first[0], second[1] - second[0], room, draw)
        return self._read(first, kept_first), self._read(second, kept_second), random_next

    def _elsewhere(self, sentence: int, room: int, draw: np.random.Generator) -> tuple[int, int]:
        """Whole sentences of another document, from a random one on, until `room` is full or it ends."""
        own = int(np.searchsorted(self._documents, sentence, side="right")) - 1
        other = int(draw.integers(0, len(self._documents) - 2))
        other += other >= own
        begin = int(draw.integers(self._documents[other], self._documents[other + 1]))
        stop = int(self._documents[other + 1])
        filled = int(np.searchsorted(self._starts[begin + 1 : stop + 1], self._starts[begin] + max(room, 1)))
        return self._span(begin, min(begin + 1 + filled, stop))

    def _span(self, first: int, stop: int) -> tuple[int, int]:
        return int(self._starts[first]), int(self._starts[stop])

    def _read(self, span: tuple[int, int], kept: slice) -> _Ids:
        return self._shards.read(span[0] + kept.start, kept.stop - kept.start)


def sentences_file(split: str) -> str:
    return f"{split}-sentences.bin"


def documents_file(split: str) -> str:
    return f"{split}-documents.bin"


def runs_file(split: str) -> str:
    return f"{split}-runs.bin"


class PairWriter:
    """Writes where a split's sentences, documents and runs begin. Raises OSError."""

    def __init__(self, directory: Path, split: str, room: int) -> None:
        names = (sentences_file(split), documents_file(split), runs_file(split))
        self._room = room
        self._starts, self._documents, self._runs = (FlatWriter(directory / name, "<u8") for name in names)
        self._tokens = self._sentences = 0

    def append(self, lengths: Sequence[int]) -> None:
        """Add a document with sentences of these lengths."""
        ends = list(accumulate(lengths, initial=self._tokens))
        self._starts.append(np.array(ends[:-1]))
        self._documents.append(np.array([self._sentences]))
        runs = np.array(runs_of(lengths, self._room), dtype=np.int64).reshape(-1, 2)
        self._runs.append(runs + self._sentences)
        self._tokens = ends[-1]
        self._sentences += len(lengths)

    @property
    def documents(self) -> int:
        return self._documents.count

    @property
    def samples(self) -> int:
        return self._runs.count // 2

    def __enter__(self) -> PairWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in (self._starts, self._documents, self._runs):
            writer.close()

    def finish(self) -> dict[str, FileEntry]:
        """Write the last ends and close the files; return their entries."""
        self._starts.append(np.array([self._tokens]))
        self._documents.append(np.array([self._sentences]))
        return {writer.name: writer.entry() for writer in (self._starts, self._documents, self._runs)}
