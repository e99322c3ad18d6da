"""The header of a safetensors file: which tensor lies where.

The format (https://github.com/huggingface/safetensors, README): the header's length as 8 bytes little-endian,
the header as JSON {name: {"dtype", "shape", "data_offsets": [first, end]}}, then the tensors' bytes,
row-major and without gaps. This module needs no torch, so that checkpoints can be listed and verified fast.
"""

import json
import math
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

_LONGEST_HEADER = 100_000_000  # bytes; the library's own limit


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


def read_header(path: Path, file: FileIO) -> dict[str, Entry]:
    """Places of the tensors in the safetensors `file`; CheckpointError when the header is malformed."""
    with naming(path):
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _LONGEST_HEADER else b""
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)  # free text of the file's writer
        return _places(entries, 8 + length)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path.parent.name}/{path.name}: damaged safetensors header") from error
