"""Tensors in safetensors files: written in one pass while hashing, and read by rows.

The library's own writer wants every byte in memory and gives no digest; its reader maps the file, which turns
a read error of a network file system into SIGBUS. So both directions are implemented here, and the tests read
these files with the library. `training.checkpoint.header` describes the format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

import torch

from training.checkpoint.disk import CHUNK, HashedFile
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import lay_out

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


def write_tensors(file: HashedFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` (any device; copied to the CPU one at a time) as one safetensors file."""
    head, places = lay_out({name: (CODES[t.dtype], tuple(t.shape)) for name, t in tensors.items()})
    file.write(head)
    for name in places:
        file.write(byte_view(tensors[name].detach().cpu().contiguous()))


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """CheckpointError with a tensor that holds a value that is not finite; needs no memory for a copy.

    The host waits once for each device, not once for each tensor.
    """
    largest: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            norm = torch.linalg.vector_norm(tensor.detach(), math.inf)
            largest.setdefault(tensor.device, {})[name] = norm.double()
    for norms in largest.values():
        finite = torch.stack([*norms.values()]).isfinite().tolist()
        for name, good in zip(norms, finite):
            if not good:
                raise CheckpointError(f"tensor {name!r} holds a value that is not finite")


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, in the tensor's own memory."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)


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
