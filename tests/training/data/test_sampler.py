"""The order of samples: a permutation of every epoch, the same on any number of ranks and after resumes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from training.data.errors import DataError
from training.data.sampler import PADDING, heldout_batches, micro_batches, permute, samples_at

SIZES = [*range(1, 70), 97, 127, 128, 129, 1000, 1021, 1024, 4096, 5003]


def order(n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return permute(np.arange(n), n, seed, epoch).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_every_epoch_is_a_permutation(seed: int) -> None:
    for n in SIZES:
        assert sorted(order(n, seed, epoch=3)) == list(range(n)), n


def test_one_index_gives_the_same_as_all_together() -> None:
    n = 1021
    whole = order(n)
    assert [int(permute(np.array([index]), n, 0, 0)[0]) for index in range(0, n, 50)] == whole[::50]
    grid = permute(np.arange(1020).reshape(4, 255), n, 0, 0)
    assert grid.ravel().tolist() == whole[:1020]


def test_huge_epochs_cost_nothing_more() -> None:
    n = 10**15 + 37
    indices = np.arange(n - 5000, n)
    images = permute(indices, n, 1, 2)
    assert len(set(images.tolist())) == 5000
    assert images.min() >= 0
    assert images.max() < n
    assert 0.4 < (images < n // 2).mean() < 0.6


def test_the_order_stays_the_same_between_versions() -> None:
    """A resumed run relies on these numbers: changing them breaks every checkpoint."""
    assert order(10, seed=0, epoch=0) == [2, 1, 9, 0, 4, 3, 7, 8, 6, 5]
    assert order(10, seed=0, epoch=1) == [2, 6, 4, 1, 8, 5, 7, 0, 3, 9]
    assert permute(np.array([0, 1, 2]), 35_776, 42, 7).tolist() == [5875, 30786, 27120]


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    n = 4096
    base = np.array(order(n))
    others = [order(n, 1, 0), order(n, 0, 1), order(n, 2**32, 0), order(n, 1, 1)]
    for number, other in enumerate([list(range(n)), *others]):
        same = int((base == other).sum())
        assert same < 12, f"{same} equal places with order {number}; about 1 is chance"
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.08
    assert order(n, 1, 0) != order(n, 0, 1)


@pytest.mark.parametrize("n", [1000, 1021, 4096])
def test_an_order_looks_random(n: int) -> None:
    images = np.array(order(n, seed=5))
    for lag in (1, 2, int(n**0.5), int(n**0.5) + 1, n // 2):
        steps = (np.roll(images, -lag) - images) % n
        assert np.bincount(steps, minlength=n).max() < 12, f"a favourite distance at lag {lag}"
        assert abs(np.corrcoef(images, np.roll(images, -lag))[0, 1]) < 4 / n**0.5
    quarters = np.histogram2d(np.arange(n), images, bins=4)[0]
    expected = n / 16
    assert ((quarters - expected) ** 2 / expected).sum() < 9 + 5 * 18**0.5


@pytest.mark.parametrize("n", [2, 3, 5, 16])
def test_over_many_seeds_every_place_is_equally_likely(n: int) -> None:
    draws = 2000
    counts = np.zeros((n, n))
    for seed in range(draws):
        counts[np.arange(n), order(n, seed)] += 1
    expected = draws / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_all_orders_of_few_samples_occur() -> None:
    found = Counter(tuple(order(4, seed)) for seed in range(2400))
    assert len(found) == 24
    assert min(found.values()) > 50
    assert max(found.values()) < 160


def samples(seed: int, position: int, count: int, n: int) -> list[int]:
    return samples_at(np.arange(position, position + count), seed, n).tolist()


def test_positions_run_over_the_borders_of_epochs() -> None:
    n, seed = 7, 11
    expected = order(n, seed, 0) + order(n, seed, 1) + order(n, seed, 2)
    assert samples(seed, 0, 21, n) == expected
    assert samples(seed, 5, 10, n) == expected[5:15]
    assert samples(seed, 13, 0, n) == []
    assert samples(seed, 0, 4, 1) == [0, 0, 0, 0]


def read(seed: int, position: int, global_size: int, micro: int, world_size: int, n: int) -> list[list[int]]:
    """The micro batches of one step in their global order, by accumulation step, then by rank; without empty ones."""
    ranks = [micro_batches(position, global_size, micro, rank, world_size) for rank in range(world_size)]
    steps = [places for step in zip(*ranks, strict=True) for places in step]
    empty = [bool((places == PADDING).all()) for places in steps]
    assert sorted(empty) == empty, "empty ones are the last"
    assert sum(empty) < world_size
    return [samples_at(places, seed, n).tolist() for places in steps[: len(steps) - sum(empty)]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
def test_a_global_batch_does_not_depend_on_the_world_size(world_size: int) -> None:
    for position in (0, 96, 104):
        flat = np.reshape(samples(1, position, 16, 110), (8, 2)).tolist()
        assert read(1, position, 16, 2, world_size, 110) == flat


@pytest.mark.parametrize("world_sizes", [[1], [2], [4], [1, 2, 4], [4, 3, 2, 4]])
@pytest.mark.parametrize("n", [96, 101])
def test_every_sample_is_read_exactly_once_an_epoch_through_resumes(world_sizes: list[int], n: int) -> None:
    """Every three steps the job restarts with another world size; only the position is kept."""
    global_size, micro = 8, 2
    position = 0
    seen: list[int] = []
    while position < 8 * n:
        world_size = world_sizes[position // (3 * global_size) % len(world_sizes)]
        step = read(4, position, global_size, micro, world_size, n)
        assert len(step) == global_size // micro
        seen += [index for batch in step for index in batch]
        position += global_size
    epochs = [seen[begin : begin + n] for begin in range(0, 8 * n, n)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(n))
    assert len({tuple(epoch) for epoch in epochs}) == 8


def test_a_batch_that_does_not_divide_is_refused() -> None:
    for global_size, micro, world_size in ((8, 3, 1), (8, 2, 5), (2, 2, 2)):
        with pytest.raises(DataError, match=f"global batch size {global_size} has no micro batch of {micro} samples"):
            micro_batches(0, global_size, micro, 0, world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize(("count", "n"), [(10, 1000), (1000, 1000), (5000, 37), (1, 1)])
def test_heldout_samples_are_divided_over_the_ranks(count: int, n: int, world_size: int) -> None:
    parts = [heldout_batches(count, 4, rank, world_size, n) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    assert {batch.shape for part in parts for batch in part} == {(4,)}
    slots = np.stack([np.stack(part) for part in parts], axis=1).ravel()
    kept = slots[slots >= 0].tolist()
    assert len(kept) == min(count, n)
    assert kept == sorted(set(kept))
    assert len(slots) - len(kept) < 4 * world_size
    assert kept == [k * n // min(count, n) for k in range(min(count, n))]
