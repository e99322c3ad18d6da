"""One lane of a stream: its share of the documents, shuffled, as tokens, packed into samples.

A stream is split into a fixed number of lanes, whatever the number of ranks. Each epoch has its own order of
files, and lane l reads every L-th of them. So all lanes together read each document of an epoch exactly once.
A lane's samples depend on (source, seed, lane) only. Its state is a few numbers: where its current block of
documents begins, and the position in the block's shuffled order. A resume reads that block again, and nothing
before it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError
from training.data.readers import Place, rows_of

State = dict[str, Any]
# Documents tokenised in one call: enough for the tokenizer's threads, few compared with a block.
_TOGETHER = 16


@dataclass(frozen=True)
class Plan:
    """What all lanes of a stream have in common.

    If there are fewer `files` than lanes, each is read in parts: rows i, i + parts, ... for one lane.
    Documents with a hash below `heldout_below` are held out: no lane yields them. `encode` turns texts into
    token ids, framed by bos and eos. `block` is the number of documents that are shuffled together.
    """

    files: tuple[Place, ...]
    text_field: str
    lanes: int
    seed: int
    block: int
    heldout_below: int
    sequence_length: int
    encode: Callable[[list[str]], list[npt.NDArray[Any]]]

    @property
    def parts(self) -> int:
        """Number of parts that each file is split into."""
        return -(-self.lanes // len(self.files))

    def units(self, lane: int, epoch: int) -> list[int]:
        """Return a lane's units in an epoch, in order; a unit is file number x parts + part."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.files) * self.parts)
        return [int(unit) for unit in order[lane :: self.lanes]]


@dataclass(frozen=True)
class Sample:
    """One sample: sequence length + 1 tokens, the document number of each, and the lane's state after it."""

    tokens: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    state: State


class _Reader:
    """A lane's documents in reading order, epoch by epoch."""

    def __init__(self, plan: Plan, lane: int, state: State | None) -> None:
        self._plan, self._lane = plan, lane
        self._epoch, self._fresh, self._found, self.ended = -1, True, 0, False
        self._unread: State | None = None
        self._rows: Iterator[dict[str, str]] = iter(())
        if state is None:
            self.next_epoch()
        else:
            self._begin(state["epoch"], state["rows"])

    def state(self) -> State:
        """Return the place of the next document."""
        return {"epoch": self._epoch, "rows": self._unread or self._dataset.state_dict()}

    def fill(self, block: list[str], count: int) -> None:
        """Read until `block` holds `count` documents or the epoch ends."""
        while len(block) < count and not self.ended:
            row, self._unread = next(self._rows, None), None
            if row is None:
                self.ended = True
            elif row["text"].strip() and not self._held_out(row["text"]):
                self._found += 1
                block.append(row["text"])

    def next_epoch(self) -> None:
        """Begin the next epoch. Raises DataError if a whole epoch had no document."""
        if self._epoch >= 0 and self._fresh and not self._found:
            units = self._plan.units(self._lane, self._epoch)
            names = ", ".join(str(self._plan.files[unit // self._plan.parts]) for unit in units[:3])
            raise DataError(f"stream: no document to train on in {names}{', ...' if len(units) > 3 else ''}")
        self._begin(self._epoch + 1, None)

    def _begin(self, epoch: int, rows: State | None) -> None:
        from datasets import IterableDataset
        from datasets.iterable_dataset import ExamplesIterable

        self._epoch, self._fresh, self._found, self.ended = epoch, rows is None, 0, False
        # `from_generator` would pickle its arguments, but callbacks of open connections cannot be pickled.
        share = {"units": self._plan.units(self._lane, epoch), "plan": self._plan}
        self._dataset = IterableDataset(ExamplesIterable(_rows_of_units, share))
        # A dataset returns a state that it was given only after something was read from it.
        self._unread = rows
        if rows is not None:
            self._dataset.load_state_dict(rows)
        self._rows = iter(self._dataset)

    def _held_out(self, text: str) -> bool:
        digest = hashlib.sha256(text.encode()).digest()
        return int.from_bytes(digest[:8], "little") < self._plan.heldout_below


def _rows_of_units(units: list[int], plan: Plan) -> Iterator[tuple[str, dict[str, str]]]:
    for unit in units:
        rows = rows_of(plan.files[unit // plan.parts], plan.text_field)
        for number, document in enumerate(itertools.islice(rows, unit % plan.parts, None, plan.parts)):
            yield f"{unit}-{number}", {"text": document.text}


def samples(plan: Plan, lane: int, state: State | None = None) -> Iterator[Sample]:
    """Yield a lane's samples without end, from its start or from the state in a sample.

    Sample i is the tokens [i*T, i*T + T] of the lane's documents in sequence. As in a prepared dataset, each
    token is an input once and a label at most once. Raises DataError.
    """
    length = plan.sequence_length
    held: deque[tuple[State, npt.NDArray[Any]]] = deque()
    offset = 0 if state is None else int(state["token"])
    available = -offset
    for place, tokens in _encoded(plan, _shuffled(plan, lane, state)):
        held.append((place, tokens))
        available += len(tokens)
        while available > length:
            sample = _cut(held, offset, length + 1)
            offset += length
            available -= length
            while offset >= len(held[0][1]):
                offset -= len(held.popleft()[1])
            yield Sample(*sample, {**held[0][0], "token": offset})


def _shuffled(plan: Plan, lane: int, state: State | None) -> Iterator[tuple[State, str]]:
    """Yield documents in shuffled order, each with its place; the next block is read gradually meanwhile."""
    reader = _Reader(plan, lane, state and state["reader"])
    number, skip = (state["block"], state["document"]) if state else (0, 0)
    start, block = reader.state(), list[str]()
    while True:
        reader.fill(block, plan.block)
        if reader.ended:
            reader.next_epoch()
        next_start, following = reader.state(), list[str]()
        order = np.random.default_rng([plan.seed, lane, number]).permutation(len(block))
        for index, chosen in enumerate(order):
            reader.fill(following, -(-plan.block * (index + 1) // len(order)))
            if index >= skip:
                yield {"reader": start, "block": number, "document": index}, block[chosen]
        start, block, number, skip = next_start, following, number + 1, 0


def _encoded(plan: Plan, documents: Iterator[tuple[State, str]]) -> Iterator[tuple[State, npt.NDArray[Any]]]:
    while True:
        together = list(itertools.islice(documents, _TOGETHER))
        encoded = plan.encode([text for _, text in together])
        yield from ((place, tokens) for (place, _), tokens in zip(together, encoded, strict=True))


def _cut(
    held: deque[tuple[State, npt.NDArray[Any]]], offset: int, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return `count` tokens from `offset` in the first document on, and their documents' numbers."""
    parts: list[npt.NDArray[Any]] = []
    missing = count
    for _, tokens in held:
        parts.append(tokens[offset : offset + missing])
        missing -= len(parts[-1])
        offset = 0
        if not missing:
            break
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.concatenate(parts).astype(np.int64), numbers
