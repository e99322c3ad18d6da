"""The samples that a step reads, as a pure function of (seed, epoch, global sample index).

Position p counts samples since the start of training. For a dataset of n samples its epoch is p // n, and its
place in the epoch's order is p % n. Every epoch has its own order, computed one index at a time. So a resumed
job of any world size continues at any position without reading the samples before it.
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
    """Return where the epoch's permutation of range(n) sends each index; same shape, O(1) memory per index.

    A Feistel network over pairs (left, right) with left < a, right < b and n <= a * b < n + a, where a is
    about sqrt(n). A result of n or more is permuted again until it is below n. `seed` and `epoch` must not be
    negative.
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
    """Return the samples at these positions, [positions], across epochs."""
    epochs = positions // n
    result = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        of_epoch = epochs == epoch
        result[of_epoch] = permute(positions[of_epoch] % n, n, seed, epoch)
    return result


def micro_batches(
    position: int, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int
) -> list[Indices]:
    """Return the positions that `rank` reads in the step from `position` on: one array per micro batch.

    Micro batch m of a rank covers the positions from position + (m * world_size + rank) * micro_batch_size
    on. So the global batch and the order of its micro batches do not depend on the world size. Every rank gets equally
    many, as collectives require: where the ranks cannot share them evenly, some of them end with one of PADDING.
    """
    count, rest = divmod(global_batch_size, micro_batch_size)
    if rest or count < world_size:
        of = f"global batch size {global_batch_size}"
        raise DataError(f"{of} has no micro batch of {micro_batch_size} samples for each of {world_size} ranks")
    numbers = np.arange(-(-count // world_size), dtype=np.int64) * world_size + rank
    places = position + numbers[:, None] * micro_batch_size + np.arange(micro_batch_size, dtype=np.int64)
    places[numbers >= count] = PADDING
    return list(places)


def heldout_batches(count: int, micro_batch_size: int, rank: int, world_size: int, n: int) -> list[Indices]:
    """Return the share of `rank` of `count` (at most n) held-out samples: one array per batch.

    The samples are the same at every world size, and evenly spaced over the split, so that a few of them
    represent all its documents. Every rank gets equally many batches of equal shape, as collectives and
    compiled code require. The rest is filled with PADDING, which a dataset turns into rows without labels.
    """
    count = min(count, n)
    batches = -(-count // (micro_batch_size * world_size))
    slots = np.arange(batches * world_size * micro_batch_size, dtype=np.int64)
    filled = np.where(slots < count, slots * n // count, PADDING)
    return list(filled.reshape(batches, world_size, micro_batch_size)[:, rank])
