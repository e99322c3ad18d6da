"""Which samples a step reads, as a pure function of (seed, epoch, global sample index).

Position p counts samples since the start of training: its epoch is p // n and its place in the epoch's
order is p % n, for a dataset of n samples. Every epoch has an order of its own, computed one index at a
time, so that a resumed job, of whatever world size, continues at any position without reading what came
before.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError

Indices = npt.NDArray[np.int64]
_ROUNDS = 8
PADDING = -1


@functools.lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    return np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64).astype(np.uint64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scatter 64-bit values: SplitMix64's finalizer (Steele, Lea, Flood: Fast Splittable PRNGs, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(indices: Indices, n: int, seed: int, epoch: int) -> Indices:
    """Return where the epoch's permutation of range(n) sends each index; shape kept, O(1) memory an index.

    A Feistel network over pairs (left, right) with left < a, right < b and n <= a * b < n + a, where a is
    about sqrt(n); the few results of n or more walk on along their cycle until they fall below n. `seed`
    and `epoch` are not negative.
    """
    if n < 1:
        raise ValueError(f"cannot permute {n} samples")
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    keys = _round_keys(seed, epoch)
    result = np.array(indices, dtype=np.uint64).ravel()
    walking = np.arange(result.size)
    while walking.size:
        result[walking] = _feistel(result[walking], np.uint64(a), np.uint64(b), keys)
        walking = walking[result[walking] >= n]
    return result.astype(np.int64).reshape(np.shape(indices))


def _feistel(
    values: npt.NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    left, right = values % a, values // a
    for turn in range(0, _ROUNDS, 2):
        left = (left + _mix(right ^ keys[turn]) % a) % a
        right = (right + _mix(left ^ keys[turn + 1]) % b) % b
    return right * a + left


def samples_at(positions: Indices, seed: int, n: int) -> Indices:
    """Return the samples that stand at these positions, across epochs; shape kept, one dimension."""
    epochs = positions // n
    result = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        of_epoch = epochs == epoch
        result[of_epoch] = permute(positions[of_epoch] % n, n, seed, epoch)
    return result


def micro_batches(
    position: int, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int
) -> list[Indices]:
    """Return the positions that `rank` reads in the step from `position` on: an array per accumulation.

    Micro batch m of a rank covers the positions from position + (m * world_size + rank) * micro_batch_size
    on. The global batch, and the order of the micro batches in it, so does not depend on the world size.
    """
    share, rest = divmod(global_batch_size, micro_batch_size * world_size)
    if rest or share < 1:
        raise DataError(
            f"global batch size {global_batch_size} is no multiple of micro batch size {micro_batch_size} "
            f"x world size {world_size}"
        )
    firsts = position + (np.arange(share, dtype=np.int64) * world_size + rank) * micro_batch_size
    return list(firsts[:, None] + np.arange(micro_batch_size, dtype=np.int64))


def heldout_batches(count: int, micro_batch_size: int, rank: int, world_size: int, n: int) -> list[Indices]:
    """Return what `rank` reads of `count` (at most n) held-out samples: an array per batch.

    The samples are evenly spaced over the split, so that few of them still stand for all its documents, and
    the same at every world size. Every rank gets equally many batches of equal shape, as collectives and
    compiled code need; what is missing is filled with PADDING, which a dataset turns into rows without
    labels.
    """
    count = min(count, n)
    batches = -(-count // (micro_batch_size * world_size))
    slots = np.arange(batches * world_size * micro_batch_size, dtype=np.int64)
    filled = np.where(slots < count, slots * n // count, PADDING)
    return list(filled.reshape(batches, world_size, micro_batch_size)[:, rank])
