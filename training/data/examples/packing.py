"""Cuts examples to length, and packs them into samples of a fixed length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError
from training.data.examples.encode import Encoded

Overlong = Literal["truncate", "drop", "split", "error"]


def cut(where: str, example: Encoded, length: int, overlong: Overlong) -> list[Encoded]:
    """Return the rest of an example of more than `length` tokens: its beginning, nothing, or all its pieces.

    Pieces overlap by one token, so that each token except the first is predicted exactly once. Raises
    DataError if `overlong` is "error".
    """
    count = len(example.tokens)
    if overlong == "error":
        raise DataError(f"{where}: {count:,} tokens, sequence_length is {length:,} (data.overlong: error)")
    starts = {"drop": [], "truncate": [0], "split": list(range(0, count - 1, length - 1))}[overlong]
    return [_part(example, start, start + length) for start in starts]


def _part(example: Encoded, start: int, end: int) -> Encoded:
    tokens = example.tokens[start:end]
    size = round(example.size * len(tokens) / len(example.tokens))
    return Encoded(tokens, example.learned[start:end], size)


def pack(lengths: Sequence[int] | npt.NDArray[np.int64], length: int) -> list[list[int]]:
    """Pack examples of these lengths into samples of at most `length` tokens; return each sample's examples.

    Best-fit decreasing: the longest first, each into the fullest sample with enough room (Ding et al. 2024,
    Fewer Truncations Improve Language Modeling, section 3). Room is an integer up to `length`, so samples are
    grouped by it, and bit n of one integer says whether some sample has room n.
    """
    samples: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    rooms = 0
    for example in np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        need = int(lengths[example])
        fitting = rooms >> need
        room = need + (fitting & -fitting).bit_length() - 1 if fitting else length
        if fitting:
            sample = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            sample = len(samples)
            samples.append([])
        samples[sample].append(example)
        with_room.setdefault(room - need, []).append(sample)
        rooms |= 1 << (room - need)
    return samples


def alone(count: int) -> Iterator[list[int]]:
    """Put each example into its own sample."""
    return ([example] for example in range(count))
