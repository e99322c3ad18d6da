"""The header of a safetensors file: which tensor lies where.

The format (https://github.com/huggingface/safetensors, README): the header's length as 8 bytes little-endian,
the header as JSON {name: {"dtype", "shape", "data_offsets": [first, end]}}, then the tensors' bytes,
row-major and without gaps. This module needs no torch, so that checkpoints can be listed and verified fast.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from training.checkpoint.errors import CheckpointError, naming

# Bytes of one value of each dtype.
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip

# What Git has in place of a large file until `git lfs pull` brings it: a clone without LFS has only these.
POINTER = b"version https://git-lfs"
OF_GIT_LFS = "this is a pointer of Git LFS in place of the file; git lfs pull brings it"

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"  # of published weights
LARGEST_INDEX = 16 << 20  # bytes; an index of 90,000 tensors has half of it
LONGEST_HEADER = 8 << 20  # bytes: more than 50,000 tensors
_LARGEST = 2**63 - 1  # of a size, a dimension or an offset


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: dtype code, shape, and its bytes [first, end) counted from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


def byte_count(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    return SIZES[dtype] * math.prod(shape)


def lay_out(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, dict[str, Entry]]:
    """Header bytes and places of tensors given as name → (dtype code, shape).

    Wide dtypes come first and the header is padded to 8 bytes, so that every tensor is aligned to its size.
    """
    order = sorted(shapes, key=lambda name: (-SIZES[shapes[name][0]], name))
    header: dict[str, dict[str, Any]] = {}
    at = 0
    for name in order:
        dtype, shape = shapes[name]
        end = at + byte_count(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, _places(header, 8 + len(text))


def _places(header: Mapping[str, Mapping[str, Any]], start: int) -> dict[str, Entry]:
    places = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        places[name] = Entry(entry["dtype"], tuple(entry["shape"]), start + first, start + end)
    return places


def read_header(path: Path, file: FileIO, longest: int = LONGEST_HEADER) -> dict[str, Entry]:
    """Places of the tensors in the safetensors `file`, whose header has at most `longest` bytes.

    Raises:
        CheckpointError: the header is malformed, or tensors overlap or lie outside the file.
    """
    with naming(path):
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        most = max(0, min(longest, size - 8))
        text = file.read(length) if length <= most else b""
    if start == POINTER[:8]:  # as a length 2.3e18 bytes
        raise CheckpointError(f"{path.parent.name}/{path.name}: {OF_GIT_LFS}")
    try:
        if size < 8:
            raise ValueError(f"the file has {size} bytes")
        if length > most:
            raise ValueError(f"it has {length:,} bytes, and may have {most:,}")
        check_density(text)
        entries = json.loads(text)
        entries.pop("__metadata__", None)  # free text of the file's writer
        places = _places(entries, 8 + length)
        _check_places(places, 8 + length, size)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise CheckpointError(f"{path.parent.name}/{path.name}: damaged safetensors header{reason}") from error
    return places


def check_density(text: bytes) -> None:
    """ValueError for JSON of many tiny lists or values, which needs 20 times its size in memory.

    An entry of a header or a manifest has at least 12 bytes for each bracket and 4 for each comma.
    """
    brackets, commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    if max(12 * brackets, 4 * commas) > len(text) + 4096:
        raise ValueError("too many small values")


def _check_places(places: Mapping[str, Entry], start: int, size: int) -> None:
    """ValueError for values of a wrong type, and for tensors that overlap or lie outside the file."""
    for place in places.values():
        numbers = (*place.shape, place.first, place.end)
        if type(place.dtype) is not str or any(type(n) is not int or not 0 <= n <= _LARGEST for n in numbers):
            raise ValueError("a value has the wrong type")
    at = start
    for name, place in sorted(places.items(), key=lambda item: (item[1].first, item[1].end)):
        if not at <= place.first <= place.end <= size:
            bytes_ = f"is at bytes {place.first:,} to {place.end:,}"
            raise ValueError(f"tensor {name[:80]!r} {bytes_}; expected within {at:,} to {size:,}")
        at = place.end
