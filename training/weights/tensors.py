"""Named tensors in safetensors files or checkpoints, read by rows: a rank reads only the rows that it keeps.

The files are read, not memory-mapped: mapped pages would count as this process's memory, and a read error of
a network file system would be a SIGBUS (see `training.checkpoint.tensors`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from training.checkpoint.disk import CHUNK
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import (
    INDEX,
    LARGEST_INDEX,
    SINGLE,
    Entry,
    byte_count,
    check_density,
    read_header,
)
from training.checkpoint.layout import canonical, rows_of
from training.checkpoint.read import Checkpoint
from training.checkpoint.shards import filled
from training.checkpoint.tensors import DTYPES, byte_view, read_into
from training.run.files import open_regular, read_bounded
from training.weights.errors import WeightsError

_NUMBERS = ("F32", "BF16", "F16", "F64")
_PICKLED = (".bin", ".pth", ".pt", ".ckpt")


@dataclass(frozen=True)
class Kind:
    """The kind of a stored tensor: safetensors' dtype code, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return byte_count(self.dtype, self.shape)


class Tensors(Protocol):
    """A set of named tensors that can be read by rows of dimension 0 (a 0-d tensor is one row)."""

    @property
    def place(self) -> str:
        """Where the tensors are, for messages."""
        ...

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The kinds of all tensors, by name."""
        ...

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        """Fill `out` (on the CPU, contiguous, of the tensor's own dtype) with the rows from `row` on."""
        ...


class SafetensorsDirectory:
    """The safetensors files of a directory: those in its index, else the single one, else all.

    Raises:
        WeightsError: there are none, only pickled ones, or the index does not match them.
        CheckpointError: a file is damaged or cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = str(directory)
        self._places: dict[str, tuple[Path, Entry]] = {}
        index = _index(directory)
        for path in _files(directory, index):
            self._add(path, index)
        for name in index or {}:
            if name not in self._places:
                raise WeightsError(f"{directory / INDEX}: names {name}, which is in none of its files")
        self.kinds = {name: Kind(entry.dtype, entry.shape) for name, (_, entry) in self._places.items()}

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        path, entry = self._places[name]
        row_bytes = (entry.end - entry.first) // max(1, rows_of(entry.shape))
        with naming(path), open_regular(path, follow=True) as file:
            read_into(path, file, entry.first + row * row_bytes, out)

    def _add(self, path: Path, index: Mapping[str, str] | None) -> None:
        with naming(path), open_regular(path, follow=True) as file:  # a hub snapshot consists of links
            entries = read_header(path, file)
        for name, entry in entries.items():
            if index is not None and index.get(name) != path.name:
                continue  # an old copy; the index names another file
            if entry.dtype not in DTYPES:
                raise WeightsError(f"{path}: tensor {name} has dtype {entry.dtype}, which is not supported")
            if entry.end - entry.first != byte_count(entry.dtype, entry.shape):
                raise CheckpointError(f"{path}: the size of tensor {name} does not match its shape")
            if name in self._places:
                raise WeightsError(f"tensor {name} is in {self._places[name][0]} and in {path}")
            self._places[name] = (path, entry)


class CheckpointTensors:
    """The model's tensors in a checkpoint of a run, by their names in safetensors files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.directory = checkpoint.directory
        self.place = str(checkpoint.directory)
        self.kinds = {
            name.removeprefix("model."): Kind(stored.dtype, stored.shape)
            for name, stored in checkpoint.tensors.items()
            if name.startswith("model.")
        }

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        self._checkpoint.read(f"model.{name}", row, out)


def _index(directory: Path) -> dict[str, str] | None:
    """The file of each tensor from the index; None without an index."""
    path = directory / INDEX
    if not path.exists():
        return None
    places = read_object(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{path}: has no weight_map")
    for name, file in places.items():
        plain = isinstance(file, str) and Path(file).name == file and file.isprintable()
        if not plain or file in ("", ".."):
            raise WeightsError(f"{path}: the file of {name} is {file!r}, which is not a plain file name")
    return places


def _files(directory: Path, index: Mapping[str, str] | None) -> list[Path]:
    if index is not None:
        files = [directory / name for name in sorted(set(index.values()))]
        for path in files:
            if not path.exists():
                raise WeightsError(f"{path} is missing; {INDEX} lists it")
        return files
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{directory}: {_no_files(directory)}")
    return files


def _no_files(directory: Path) -> str:
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLED)
    if not pickled:
        return "contains no *.safetensors"
    return (
        f"contains {pickled[0]}, but no *.safetensors; pickled files can run code when they are opened, so "
        "they are never read: if you trust them, convert them with transformers (from_pretrained, "
        "save_pretrained)"
    )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file of published weights; WeightsError if it is not one."""
    with naming(path):
        data = read_bounded(path, LARGEST_INDEX, follow=True)
    try:
        check_density(data)
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{path}: not a JSON object")
    return value


def chunks(tensors: Tensors, name: str, first: int, end: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield rows [first, end) of a tensor in its own dtype as (row, rows), some MiB each, in one buffer."""
    kind = tensors.kinds[name]
    dtype, width = DTYPES[kind.dtype], math.prod(kind.shape[1:])
    if not kind.shape:
        buffer = torch.empty((), dtype=dtype)
        tensors.read(name, 0, buffer)
        yield 0, buffer
        return
    step = max(1, CHUNK // max(1, width * dtype.itemsize))
    buffer = torch.empty((min(step, max(0, end - first)), *kind.shape[1:]), dtype=dtype)
    for row in range(first, end, step):
        part = buffer[: min(step, end - row)]
        tensors.read(name, row, part)
        yield row, part


def whole(tensors: Tensors, name: str) -> torch.Tensor:
    """The whole tensor on the CPU, in its own dtype."""
    kind = tensors.kinds[name]
    out = torch.empty(kind.shape, dtype=DTYPES[kind.dtype])
    tensors.read(name, 0, out)
    return out


@torch.no_grad()
def fill(parameters: Mapping[str, torch.Tensor], tensors: Tensors) -> None:
    """Fill each parameter (whole or FSDP2's shard, any device and floating type) from the tensor of its name.

    Reads only the rows that this rank keeps. Names and shapes must have been checked.
    """
    for name, parameter in parameters.items():
        with filled([(name, parameter)]) as shards:
            shard = shards[name]
            for row, part in chunks(tensors, name, shard.row_offset, shard.row_offset + shard.row_count):
                at = row - shard.row_offset
                target = shard.tensor[at : at + part.shape[0]] if part.ndim else shard.tensor
                target.copy_(part)


def check_shapes(wanted: Mapping[str, tuple[int, ...]], tensors: Tensors, ignored: Collection[str] = ()) -> None:
    """Refuse tensors with other names or shapes than the wanted ones, or without floating-point numbers.

    Raises:
        WeightsError: names the first tensors that are missing, unexpected, or different.
    """
    found = {name: kind for name, kind in tensors.kinds.items() if name not in ignored}
    for name in sorted(wanted.keys() & found.keys()):
        if found[name].shape != wanted[name]:
            shapes = f"has shape {list(found[name].shape)}, the model needs {list(wanted[name])}"
            raise WeightsError(f"{tensors.place}: tensor {name} {shapes}")
        if found[name].dtype not in _NUMBERS:
            trouble = f"has dtype {found[name].dtype}; supported are {', '.join(_NUMBERS)}"
            raise WeightsError(f"{tensors.place}: tensor {name} {trouble}")
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    troubles = [f"{_some(missing)} missing"] if missing else []
    troubles += [f"{_some(unexpected)} unexpected"] if unexpected else []
    if troubles:
        raise WeightsError(f"{tensors.place}: {'; '.join(troubles)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    listed = f"{', '.join(names[:3])}{more}"
    return f"tensors {listed} are" if len(names) > 1 else f"tensor {listed} is"


def hashes(tensors: Tensors, names: list[str], tell: Callable[[int], None]) -> dict[str, str]:
    """SHA-256 of each tensor's bytes; `tell` gets the number of bytes of every finished piece."""
    found = {}
    for name in names:
        digest = hashlib.sha256()
        for _, part in chunks(tensors, name, 0, rows_of(tensors.kinds[name].shape)):
            view = byte_view(part)
            digest.update(view)
            tell(len(view))
        found[name] = digest.hexdigest()
    return found


def hash_of(tensor: torch.Tensor) -> str:
    """SHA-256 of the bytes of a contiguous CPU tensor."""
    return hashlib.sha256(byte_view(tensor)).hexdigest()


def digest_of(kinds: Mapping[str, Kind], hashed: Mapping[str, str]) -> str:
    """One digest over the names, dtypes, shapes and bytes of a set of tensors, however files divide them."""
    table = {name: [kinds[name].dtype, list(kinds[name].shape), sha] for name, sha in hashed.items()}
    return hashlib.sha256(canonical(table)).hexdigest()
