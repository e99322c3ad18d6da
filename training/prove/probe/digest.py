"""Digests of tensors, computed where the tensors are.

Small tensors are hashed byte by byte. A large one is folded into rows of 64-bit words, and the sums (modulo 2^64) of
the columns of each block of rows are hashed: one pass over the memory. One changed word changes a sum, and so does a
moved one: the width of a row is a prime number, so that rows of a matrix do not meet in one column.

A sampled digest reads one row in several of a tensor above SAMPLED_BYTES. It serves for what the parameters after the
step show in full as well: gradients, the state of an optimizer, and parameters before a step.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

SMALL_BYTES = 4096
WIDTH = 509  # words
BLOCK = 128  # rows: the sums have less than 1 % of the size of the tensor
EVERY = 8  # rows
SAMPLED_BYTES = 64 * 1024


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


def is_large(tensor: Any) -> bool:
    """Return whether a sampled digest reads a part of the tensor only."""
    return _bytes(local(tensor)) > SAMPLED_BYTES


def _flat(tensor: Any) -> Any:
    """Return the tensor in one dimension, in the order of memory, without a copy where that can be had."""
    if tensor.is_complex():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))


def _sums(words: Any, every: int) -> list[Any]:
    """Return the sums of the columns of each block of rows, those of the rows that are left, and the words after them.

    One row in `every` is read.
    """
    found = []
    row, block = WIDTH * every, BLOCK * WIDTH * every
    blocks = words.numel() // block
    if blocks:
        found.append(words.as_strided((blocks, BLOCK, WIDTH), (block, row, 1)).sum(1).view(-1))
        words = words[blocks * block :]
    rows = words.numel() // row
    if rows:
        found.append(words.as_strided((rows, WIDTH), (row, 1)).sum(0))
    return [*found, words[rows * row :][:WIDTH]]


def _summary(torch: Any, flat: Any, every: int) -> list[Any]:
    """Return short tensors, of words or of bytes, from which equal tensors have equal values."""
    size = _bytes(flat)
    if size <= SMALL_BYTES:
        return [flat.view(torch.uint8)] if size else []
    every = every if size > SAMPLED_BYTES else 1
    if flat.storage_offset() * flat.element_size() % 8:  # such bytes cannot be read as words
        flat = flat.clone()
    if size % 8 == 0:
        return _sums(flat.view(torch.int64), every)
    flat = flat.view(torch.uint8)
    words = flat[: size // 8 * 8].view(torch.int64)
    return [*(one.view(torch.uint8) for one in _sums(words, every)), flat[size // 8 * 8 :]]


def digests(torch: Any, tensors: Iterable[Any]) -> list[str]:
    """Return a digest of each tensor. See `grouped`."""
    return grouped(torch, [Group([one]) for one in tensors])


def grouped(torch: Any, groups: list[Group]) -> list[str]:
    """Return one digest of the tensors of each group. Those of a device are brought to the host by two copies."""
    pieces: dict[Any, list[Any]] = {}  # of devices, by device and type
    ends: dict[Any, int] = {}  # bytes of the pieces so far
    places: list[tuple[list[str], list[bytes], dict[Any, int], dict[Any, int]]] = []
    with torch.no_grad():
        for tensors, every in groups:
            heads: list[str] = []
            near: list[bytes] = []
            starts = dict(ends)
            for tensor in tensors:
                plain = _attached(tensor)
                heads.append(f"{plain.dtype} {plain.numel()}")
                if plain.is_cpu:
                    near += _contents(torch, plain, every)
                    continue
                for part in _summary(torch, _flat(plain.detach()), every):
                    pool = part.device, part.dtype
                    pieces.setdefault(pool, []).append(part)
                    ends[pool] = ends.get(pool, 0) + _bytes(part)
            places.append((heads, near, starts, dict(ends)))
        held = {pool: memoryview(content(torch.cat(pieces[pool]).cpu())) for pool in sorted(pieces, key=str)}
    found = []
    for heads, near, starts, stops in places:
        spans = (data[starts.get(pool, 0) : stops.get(pool, 0)] for pool, data in held.items())
        found.append(hashed(b"".join([",".join(heads).encode(), *near, *spans])))
    return found


def _contents(torch: Any, plain: Any, every: int) -> list[bytes]:
    """Return the bytes of the summary of a tensor on the host. Most tensors are small: they are read in place."""
    if _bytes(plain) <= SMALL_BYTES and plain.is_contiguous() and not plain.is_complex():
        return [content(plain)]
    return [content(part) for part in _summary(torch, _flat(plain.detach()), every)]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def content(tensor: Any) -> bytes:
    """Return the bytes of a contiguous tensor on the host. NumPy may be absent.

    Raises ValueError if the tensor's memory was freed, as a sharded module frees gathered parameters.
    """
    size = _bytes(tensor)
    if not size:
        return b""
    start = tensor.storage_offset() * tensor.element_size()
    if not tensor.data_ptr() or start + size > tensor.untyped_storage().nbytes():
        raise ValueError("the memory of a tensor was freed")
    return ctypes.string_at(tensor.data_ptr(), size)


def rows(torch: Any, tensor: Any, most: int) -> list[str]:
    """Return a digest of each row of the first dimension."""
    with torch.no_grad():
        flat = local(tensor)[:most].contiguous().cpu()
        count = flat.shape[0]
        data = content(_flat(flat))
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
    found = [one for one in tensors if _bytes(one) > SMALL_BYTES]
    small: dict[Any, list[Any]] = {}
    for one in tensors:
        if _bytes(one) <= SMALL_BYTES:
            small.setdefault((one.device, one.dtype), []).append(one.reshape(-1))
    return found + [torch.cat(parts) for parts in small.values()]


def sums(torch: Any, tensors: list[Any], turn: int = 0) -> tuple[bool, bool]:
    """Return whether all tensors are zero, and whether all are finite.

    Of a large tensor one row in EVERY is read, a different one at each turn. If all of these are zero, the tensor is
    read in full.
    """
    with torch.no_grad():
        plain = _joined(torch, [one for one in map(local, tensors) if one.numel()])
        if not plain:
            return True, True
        totals = [
            one.sum(dtype=torch.float32) if one.is_floating_point() and one.element_size() < 4 else one.sum()
            for one in (_sampled(it, turn) for it in plain)
        ]
        by_device: dict[Any, list[int]] = {}
        for place, one in enumerate(plain):
            by_device.setdefault(one.device, []).append(place)
        values: dict[int, Any] = {}
        for chosen in by_device.values():
            stacked = torch.stack([totals[place].double() for place in chosen]).cpu().tolist()
            values.update(zip(chosen, stacked))
        zero, finite = True, True
        for place, value in values.items():
            # A sum of zero may be a chance, and a sum may overflow: such a tensor is read in full.
            if value - value != 0:
                finite = finite and bool(torch.isfinite(plain[place]).all())
                zero = False
            elif value != 0 or bool(plain[place].any()):
                zero = False
    return zero, finite
