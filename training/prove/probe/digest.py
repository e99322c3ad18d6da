"""Digests of tensors, computed where the tensors are.

Small tensors are hashed byte by byte. A large one is folded into rows of 64-bit words, and the sums (modulo 2^64) of
the columns of each block of rows are hashed: one pass over the memory. One changed word changes a sum, and so does a
moved one: the width of a row is a prime number, so that rows of a matrix do not meet in one column.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable
from typing import Any

SMALL_BYTES = 4096
WIDTH = 1021  # words
BLOCK = 128  # rows: the sums have less than 1 % of the size of the tensor


def hashed(*parts: Any) -> str:
    """Return a short digest of texts and bytes."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part if isinstance(part, (bytes, bytearray, memoryview)) else str(part).encode())
    return found.hexdigest()


def local(tensor: Any) -> Any:
    """Return the plain tensor of this rank behind a parameter, a DTensor or a sparse tensor."""
    inner = getattr(tensor, "_local_tensor", None)
    plain = (tensor if inner is None else inner).detach()
    return plain.coalesce().values() if plain.is_sparse else plain


def is_sharded(tensor: Any) -> bool:
    """Return whether this rank holds a part of the tensor only."""
    placements = getattr(tensor, "placements", None)
    return placements is not None and any(not one.is_replicate() for one in placements)


def _flat(torch: Any, tensor: Any) -> Any:
    """Return the tensor's bytes as one dimension, in the order of memory, without a copy where that can be had."""
    if tensor.dim() and not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.is_complex():
        tensor = tensor.resolve_conj().resolve_neg()
    flat = tensor.reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def _summary(torch: Any, flat: Any) -> list[Any]:
    """Return short tensors of bytes from which equal tensors have equal values."""
    size = flat.numel()
    if size <= SMALL_BYTES:
        return [flat]
    whole = size // 8 * 8
    head = flat[:whole]
    if head.storage_offset() % 8:
        head = head.clone()
    words = head.view(torch.int64)
    blocks = words.numel() // (BLOCK * WIDTH)
    found = []
    if blocks:
        found.append(words[: blocks * BLOCK * WIDTH].view(blocks, BLOCK, WIDTH).sum(1).view(-1))
        words = words[blocks * BLOCK * WIDTH :]
    rows = words.numel() // WIDTH
    if rows:
        found.append(words[: rows * WIDTH].view(rows, WIDTH).sum(0))
    rest = [words[rows * WIDTH :].view(torch.uint8), flat[whole:]]
    return [*(one.view(torch.uint8) for one in found), *(one for one in rest if one.numel())]


def digests(torch: Any, tensors: Iterable[Any]) -> list[str]:
    """Return a digest of each tensor. Tensors of a device are brought to the host by one copy."""
    found: list[str] = []
    pieces: dict[Any, list[Any]] = {}
    places: list[tuple[Any, int, str]] = []
    with torch.no_grad():
        for tensor in tensors:
            plain = local(tensor)
            parts = _summary(torch, _flat(torch, plain))
            pieces.setdefault(plain.device, []).extend(parts)
            places.append((plain.device, sum(part.numel() for part in parts), f"{plain.dtype}{plain.numel()}"))
        held = {device: memoryview(content(torch.cat(parts).cpu())) for device, parts in pieces.items()}
    offsets = dict.fromkeys(held, 0)
    for device, size, head in places:
        start = offsets[device]
        offsets[device] = start + size
        found.append(hashed(head, held[device][start : start + size]))
    return found


def content(tensor: Any) -> bytes:
    """Return the bytes of a contiguous tensor on the host. NumPy may be absent."""
    size = tensor.numel()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def rows(torch: Any, tensor: Any, most: int) -> list[str]:
    """Return a digest of each row of the first dimension."""
    with torch.no_grad():
        flat = local(tensor)[:most].contiguous().cpu()
        count = flat.shape[0]
        data = content(_flat(torch, flat))
    size = len(data) // count if count else 0
    return [hashed(data[one * size : (one + 1) * size]) for one in range(count)]


def sums(torch: Any, tensors: list[Any]) -> tuple[bool, bool]:
    """Return whether all tensors are zero, and whether all are finite."""
    plain = [one for one in map(local, tensors) if one.numel()]
    if not plain:
        return True, True
    with torch.no_grad():
        totals = [
            one.sum(dtype=torch.float32) if one.is_floating_point() and one.element_size() < 4 else one.sum()
            for one in plain
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
            # A sum of zero may be a chance, and a sum may overflow: both are looked at in full.
            if value - value != 0:
                finite = finite and bool(torch.isfinite(plain[place]).all())
                zero = False
            elif value != 0 or bool(plain[place].any()):
                zero = False
    return zero, finite
