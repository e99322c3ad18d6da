"""Digests of tensors, computed where the tensors are.

Small tensors are joined and hashed byte by byte. A large one is folded into rows of 64-bit words, and the sums (modulo
2^64) of the columns of each block of rows are hashed: one pass over the memory. One changed word changes a sum, and so
does a moved one: the width of a row is a prime number, so that rows of a matrix do not meet in one column. The number
of rows in a sum is odd: the signs of float64 numbers are the highest bits of words, and an even number of changed ones
would leave a sum as it is.

A sampled digest reads one row in several of a tensor above SAMPLED_BYTES. It serves for what the parameters after the
step show in full as well: gradients, the state of an optimizer, and parameters before a step.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

SMALL_BYTES = 4096
WIDTH = 251  # words
BLOCK = 127  # rows: the sums have less than 1 % of the size of the tensor
EVERY = 8  # rows
SAMPLED_BYTES = 64 * 1024
ROW_BYTES = 16 * 1024  # of a sample: up to it, hashing takes less time than the calls for sums


class Group(NamedTuple):
    """Tensors with one digest. Of a large one, one row in `every` is read."""

    tensors: list[Any]
    every: int = 1


def hashed(*parts: Any) -> str:
    """Return a short digest of texts and bytes."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part if isinstance(part, (bytes, bytearray, memoryview)) else str(part).encode())
    return found.hexdigest()


def local(tensor: Any) -> Any:
    """Return the plain tensor of this rank behind a parameter, a DTensor or a sparse tensor."""
    return _attached(tensor).detach()


def _attached(tensor: Any) -> Any:
    inner = getattr(tensor, "_local_tensor", None)
    plain = tensor if inner is None else inner
    return plain.detach().coalesce().values() if plain.is_sparse else plain


def is_sharded(tensor: Any) -> bool:
    """Return whether this rank holds a part of the tensor only."""
    placements = getattr(tensor, "placements", None)
    return placements is not None and any(not one.is_replicate() for one in placements)


def _flat(tensor: Any) -> Any:
    """Return the tensor in one dimension, in the order of memory, without a copy where that can be had.

    Raises ValueError if the tensor's memory was freed, as a sharded module frees gathered parameters.
    """
    dense = tensor.is_contiguous()
    if tensor.is_cpu or tensor.is_cuda:  # tensors of other devices, such as XLA's, may have no storage
        there = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        if tensor.numel() and there < (tensor.numel() if dense else 1):
            raise ValueError("the memory of a tensor was freed")
    if tensor.is_complex():
        tensor = tensor.resolve_conj().resolve_neg()
    if dense and tensor.dim() == 1:
        return tensor
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))


def _sums(words: Any, every: int) -> list[Any]:
    """Return the sums of the columns of each block of rows, those of most rows that are left, and the words after them.

    One row in `every` is read, and then nothing after the last row. `words` is contiguous.
    """
    found = []
    row, block = WIDTH * every, BLOCK * WIDTH * every
    size, start = words.numel(), words.storage_offset()
    blocks = size // block
    if blocks:
        found.append(words.as_strided((blocks, BLOCK, WIDTH), (block, row, 1), start).sum(1).view(-1))
    rows = (size % block + row - WIDTH) // row  # that start and end in what is left
    if rows % 2 == 0:
        rows = max(rows - 1, 0)
    if rows:
        found.append(words.as_strided((rows, WIDTH), (row, 1), start + blocks * block).sum(0))
    after = size - blocks * block - rows * WIDTH
    if every == 1 and after:
        found.append(words.as_strided((after,), (1,), start + size - after))
    return found


def _summary(torch: Any, plain: Any, every: int) -> list[Any]:
    """Return short tensors of one dimension, from which equal tensors have equal values."""
    size = _bytes(plain)
    if size <= SMALL_BYTES:
        return [_flat(plain)] if size else []
    every = every if size > SAMPLED_BYTES else 1
    flat = _flat(plain)
    if flat.storage_offset() * flat.element_size() % 8:  # such bytes cannot be read as words
        flat = flat.clone()
    if size % 8 == 0:
        return _sums(flat.view(torch.int64), every)
    flat = flat.view(torch.uint8)
    words = flat[: size // 8 * 8].view(torch.int64)
    return [*_sums(words, every), flat[size // 8 * 8 :]]


def digests(torch: Any, tensors: Iterable[Any]) -> list[str]:
    """Return a digest of each tensor. See `grouped`."""
    return grouped(torch, [Group([one]) for one in tensors])


def grouped(torch: Any, groups: list[Group]) -> list[str]:
    """Return one digest of the tensors of each group.

    What is hashed of all of them is joined first, by device and type: a call for each tensor costs more than a copy.
    """
    pieces: dict[Any, list[Any]] = {}  # by device and type
    ends: dict[Any, int] = {}  # elements of the pieces so far
    places: list[tuple[str, dict[Any, int]]] = []
    with torch.no_grad():
        for tensors, every in groups:
            heads = []
            for tensor in tensors:
                plain = _attached(tensor)
                heads.append(_head(plain.dtype, plain.numel()))
                for part in _summary(torch, plain, every):
                    pool = part.device, part.dtype
                    pieces.setdefault(pool, []).append(part)
                    ends[pool] = ends.get(pool, 0) + part.numel()
            places.append((",".join(heads), dict(ends)))
        held = {pool: _joined_bytes(torch, pieces[pool]) for pool in sorted(pieces, key=str)}
    found, starts = [], dict.fromkeys(held, 0)
    for head, stops in places:
        spans = [data[starts[pool] * width : stops.get(pool, 0) * width] for pool, (width, data) in held.items()]
        found.append(hashed(b"".join([head.encode(), *spans])))
        starts.update(stops)
    return found


@functools.lru_cache(maxsize=4096)
def _head(dtype: Any, count: int) -> str:
    return f"{dtype} {count}"


def _joined_bytes(torch: Any, parts: list[Any]) -> tuple[int, memoryview]:
    """Return the bytes of an element, and those of all parts on the host."""
    joined = torch.cat(parts).cpu()
    return joined.element_size(), memoryview(content(joined))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def content(tensor: Any) -> bytes:
    """Return the bytes of a contiguous tensor on the host. NumPy may be absent."""
    size = _bytes(tensor)
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def rows(torch: Any, tensor: Any, most: int) -> list[str]:
    """Return a digest of each row of the first dimension."""
    with torch.no_grad():
        plain = local(tensor)[:most]
        flat, count = _flat(plain), plain.shape[0]
        if _bytes(flat) > count * ROW_BYTES:
            return digests(torch, flat.view(count, -1))
        data = content(flat.cpu())
    size = len(data) // count if count else 0
    return [hashed(data[one * size : (one + 1) * size]) for one in range(count)]


def _sampled(tensor: Any, turn: int) -> Any:
    """Return a tensor as it is; of a large contiguous one, one row in EVERY, a different one at each turn."""
    row = SMALL_BYTES // tensor.element_size()
    if _bytes(tensor) <= SAMPLED_BYTES or not tensor.is_contiguous():
        return tensor
    start = tensor.storage_offset() + turn % EVERY * row
    return tensor.as_strided((tensor.numel() // (row * EVERY), row), (row * EVERY, 1), start)


def _joined(torch: Any, tensors: list[Any]) -> list[Any]:
    """Return the tensors with the small ones of one device and type joined: a call for each costs more than a copy."""
    found = []
    small: dict[Any, list[Any]] = {}
    for one in tensors:
        if _bytes(one) > SMALL_BYTES:
            found.append(one)
        elif one.numel():
            small.setdefault((one.device, one.dtype), []).append(one.reshape(-1))
    return found + [torch.cat(parts) for parts in small.values()]


def sums(torch: Any, tensors: list[Any], turn: int = 0) -> tuple[bool, bool]:
    """Return whether all tensors are zero, and whether all are finite.

    Of a large tensor one row in EVERY is read, a different one at each turn. If all of these are zero, the tensor is
    read in full.
    """
    with torch.no_grad():
        plain = _joined(torch, list(map(_attached, tensors)))
        if not plain:
            return True, True
        totals = [
            one.sum(dtype=torch.float32) if one.is_floating_point() and one.element_size() < 4 else one.sum()
            for one in (_sampled(it, turn) for it in plain)
        ]
        alike: dict[Any, list[int]] = {}  # by device and type
        for place, total in enumerate(totals):
            alike.setdefault((total.device, total.dtype), []).append(place)
        values: dict[int, Any] = {}
        for chosen in alike.values():
            values.update(zip(chosen, torch.stack([totals[place] for place in chosen]).tolist()))
        zero, finite = True, True
        for place, value in values.items():
            # A sum of zero may be a chance, and a sum may overflow: such a tensor is read in full.
            if value - value != 0:
                finite = finite and bool(torch.isfinite(plain[place]).all())
                zero = False
            elif value != 0 or bool(plain[place].any()):
                zero = False
    return zero, finite
