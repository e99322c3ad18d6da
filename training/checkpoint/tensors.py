"""safetensors files, written in one pass while hashing and read by rows.

The format (https://github.com/huggingface/safetensors, README): the header's length as 8 bytes little-endian,
the header as JSON {name: {"dtype", "shape", "data_offsets": [first, end]}}, then the tensors' bytes,
row-major and without gaps. The library's own writer wants every byte in memory and gives no digest; its
reader maps the file, which turns a read error of a network file system into SIGBUS. So both directions are
here, and the tests read these files with the library.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from training.checkpoint.disk import CHUNK, HashedFile
from training.checkpoint.errors import CheckpointError, naming

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

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
    return DTYPES[dtype].itemsize * math.prod(shape)


def lay_out(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, dict[str, Entry]]:
    """Header bytes and places of tensors given as name → (dtype code, shape).

    Wide dtypes come first and the header is padded to 8 bytes, so that every tensor is aligned to its size.
    """
    order = sorted(shapes, key=lambda name: (-DTYPES[shapes[name][0]].itemsize, name))
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


def write_tensors(file: HashedFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` (any device; one at a time is brought to the CPU) as one safetensors file."""
    head, places = lay_out({name: (CODES[t.dtype], tuple(t.shape)) for name, t in tensors.items()})
    file.write(head)
    for name in places:
        file.write(byte_view(tensors[name].detach().cpu().contiguous()))


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared with it."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)


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


def read_into(path: Path, file: FileIO, first: int, out: torch.Tensor) -> None:
    """Fill `out` (any device and strides) with the file's bytes from `first` on."""
    target = out.detach()
    direct = target.device.type == "cpu" and target.is_contiguous()
    buffer = target if direct else torch.empty(target.shape, dtype=target.dtype)
    rest = byte_view(buffer)
    with naming(path):
        file.seek(first)
        while rest:
            count = file.readinto(rest[:CHUNK])
            if not count:
                raise CheckpointError(f"{path.parent.name}/{path.name}: ends early")
            rest = rest[count:]
    if not direct:
        target.copy_(buffer)
