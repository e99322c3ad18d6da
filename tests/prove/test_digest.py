"""Digests of tensors: equal for equal tensors wherever they lie, different after any change."""

from __future__ import annotations

import pytest
import torch

from training.prove.probe.digest import (
    BLOCK,
    EVERY,
    ROW_BYTES,
    SAMPLED_BYTES,
    SMALL_BYTES,
    WIDTH,
    Group,
    content,
    digests,
    grouped,
    rows,
    sums,
)

# Below and above the size that is hashed byte by byte, with whole blocks, and with bytes after the last word.
SIZES = {"empty": 0, "one": 1, "small": SMALL_BYTES // 4, "rows": 3 * WIDTH + 7, "blocks": 2 * (2 * BLOCK * WIDTH) + 9}
LARGE = [("rows", torch.float32), ("blocks", torch.float32), ("rows", torch.bfloat16), ("blocks", torch.int8)]


def made(size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(1, 120, (size,), generator=generator).to(dtype)


def digest(tensor: torch.Tensor) -> str:
    return digests(torch, [tensor])[0]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_equal_tensors_have_equal_digests_wherever_they_lie(name: str, dtype: torch.dtype) -> None:
    tensor = made(SIZES[name], dtype)
    moved = torch.cat([tensor[:1].clone(), tensor])[tensor[:1].numel() :]  # starts one element later
    spread = torch.stack([tensor, tensor], 1)[:, 0]  # not contiguous
    assert digest(tensor) == digest(tensor.clone()) == digest(moved) == digest(spread)
    assert digest(tensor.conj().conj()) == digest(tensor)


@pytest.mark.parametrize(("name", "dtype"), [("one", torch.float32), ("small", torch.float32), *LARGE])
def test_every_changed_element_changes_the_digest(name: str, dtype: torch.dtype) -> None:
    tensor = made(SIZES[name], dtype)
    size = tensor.numel()
    seen = {digest(tensor)}
    places = {0, size // 2, size * 2 // 3, size - 1}
    for place in places:
        changed = tensor.clone()
        changed[place] += 1
        seen.add(digest(changed))
    assert len(seen) == len(places) + 1


@pytest.mark.parametrize(("name", "dtype"), LARGE)
def test_moved_elements_change_the_digest(name: str, dtype: torch.dtype) -> None:
    tensor = made(SIZES[name], dtype)
    rolled = tensor.roll(8 // tensor.element_size())  # by one word
    swapped = tensor.clone()
    swapped[[0, -1]] = torch.tensor([1, 2], dtype=dtype)
    turned = swapped.clone()
    turned[[0, -1]] = torch.tensor([2, 1], dtype=dtype)
    assert len({digest(one) for one in (tensor, rolled, swapped, turned)}) == 4


def test_the_rows_of_a_matrix_do_not_meet_in_one_column() -> None:
    matrix = made(512 * 64, torch.float32).reshape(512, 64)
    order = torch.randperm(512, generator=torch.Generator().manual_seed(1))
    assert digest(matrix) != digest(matrix[order])


@pytest.mark.parametrize("rows", [1, 2, 5, 6, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 6])
def test_the_signs_of_all_float64_numbers_are_in_the_digest(rows: int) -> None:
    """A changed sign changes the highest bit of a word: two of them leave a sum modulo 2^64 as it is."""
    tensor = made(rows * WIDTH, torch.float64)
    assert digest(-tensor) != digest(tensor)


@pytest.mark.parametrize("rows", [4, 5, BLOCK + 2, BLOCK + 3])
def test_a_sampled_digest_tells_the_signs_of_float64_numbers_too(rows: int) -> None:
    tensor = made(rows * EVERY * WIDTH, torch.float64)
    before, after = grouped(torch, [Group([tensor], EVERY), Group([-tensor], EVERY)])
    assert before != after


def test_type_and_number_of_elements_are_in_the_digest() -> None:
    zeros = [torch.zeros(size, dtype=dtype) for size in (0, 1, 2, 4) for dtype in (torch.float32, torch.int32)]
    assert len({digest(one) for one in zeros}) == len(zeros)


def test_a_group_is_one_digest_of_its_tensors_in_their_order() -> None:
    small, large, odd = made(8, torch.float32), made(SIZES["rows"], torch.float32), made(9001, torch.int8)
    alone = digests(torch, [small, large, odd])
    first, second, third = grouped(torch, [Group([small]), Group([large, odd]), Group([odd, large])])
    assert first == alone[0]
    assert second != third
    assert second == grouped(torch, [Group([large, odd])])[0]  # what stands before does not matter
    assert {second, third}.isdisjoint(alone)
    assert grouped(torch, [Group([]), Group([small])]) == [grouped(torch, [Group([])])[0], alone[0]]


@pytest.mark.parametrize("size", [1, ROW_BYTES, ROW_BYTES + 1])  # of a row, in bytes
def test_each_row_has_a_digest_of_its_own(size: int) -> None:
    batch = made(4 * size, torch.int8).reshape(4, size)
    batch[2], batch[3, -1] = batch[0], batch[1, -1] + 1
    found = rows(torch, batch, most=4)
    assert found[0] == found[2]
    assert len(set(found)) == 3
    assert rows(torch, batch[2:], most=4) == found[2:]
    assert rows(torch, batch, most=3) == found[:3]
    assert rows(torch, batch[:0], most=4) == []


def sampled(*tensors: torch.Tensor) -> str:
    return grouped(torch, [Group(list(tensors), EVERY)])[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("rows", [SAMPLED_BYTES // (8 * WIDTH) + 3, 2 * EVERY * BLOCK + 5 * EVERY])
def test_a_sampled_digest_reads_rows_from_all_of_a_large_tensor(dtype: torch.dtype, rows: int) -> None:
    row = WIDTH * 8 // dtype.itemsize  # elements
    tensor = made(rows * row + 3, dtype)
    seen = {sampled(tensor)}
    places = [one * EVERY for one in {0, 1, rows // EVERY // 2, rows // EVERY - 1}]
    for column, place in enumerate(places, start=1):
        changed = tensor.clone()
        changed[place * row + column * 8] += 1
        seen.add(sampled(changed))
    assert len(seen) == len(places) + 1
    unread = tensor.clone()
    unread[row] += 1  # in the second row
    assert sampled(unread) == sampled(tensor.clone())
    assert digest(unread) != digest(tensor)


def test_a_small_tensor_is_read_whole_in_a_sampled_digest() -> None:
    tensor = made(SAMPLED_BYTES // 4, torch.float32)
    assert sampled(tensor) == digest(tensor)
    assert sampled(tensor, tensor) != sampled(tensor)


def test_sums_tell_zero_and_not_finite_tensors() -> None:
    zeros, ones = [torch.zeros(size) for size in (3, 1000, 40_000)], [torch.ones(size) for size in (3, 1000, 40_000)]
    assert sums(torch, []) == sums(torch, zeros) == (True, True)
    assert sums(torch, ones) == sums(torch, [*zeros, ones[0]]) == (False, True)
    assert sums(torch, [torch.tensor([1.0, -1.0])]) == (False, True)
    assert sums(torch, [*ones, torch.tensor([float("inf")])]) == (False, False)
    assert sums(torch, [*zeros[:2], torch.tensor([3e38, 3e38])]) == (False, True)  # the sum alone is infinite


def test_every_row_of_a_large_gradient_is_read_within_a_few_steps() -> None:
    rows = 3 * EVERY
    for row in range(rows):
        gradient = torch.ones(rows, SMALL_BYTES // 4)
        gradient[row, 7] = float("nan")
        found = [sums(torch, [gradient], turn)[1] for turn in range(EVERY)]
        assert found == [turn != row % EVERY for turn in range(EVERY)]
    only = torch.zeros(rows, SMALL_BYTES // 4)
    only[1, 0] = 1.0
    assert sums(torch, [only], turn=0) == (False, True)
    assert sums(torch, [only[:, :500]], turn=0) == (False, True)  # not contiguous: read in full


def test_freed_memory_is_an_error() -> None:
    """A read of it would end the process of the script."""
    tensor = torch.ones(16)
    view = tensor[8:]
    assert len(content(view)) == 32
    tensor.untyped_storage().resize_(0)
    for one in (tensor, view):
        with pytest.raises(ValueError, match="freed"):
            digest(one)
