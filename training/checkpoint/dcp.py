"""Distributed checkpoints of PyTorch (DCP), read without executing what their pickles say.

A DCP directory has `.metadata`, a pickle of which tensor lies where, and `*.distcp` files with an archive of
torch.save for each piece. Here a pickle makes plain values only: each class that it names is in the table below
or is refused, and none of them runs code of its own. This module needs no torch.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.checkpoint.disk import read_file
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import SIZES, byte_count
from training.run.files import open_regular

METADATA = ".metadata"
_LARGEST_METADATA, _LARGEST_PICKLE = 64 << 20, 1 << 16  # bytes of .metadata, and of the pickle of one piece
_LARGEST = 2**63 - 1
_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "Float8_e4m3fnStorage": "F8_E4M3", "Float8_e5m2Storage": "F8_E5M2", "LongStorage": "I64",
    "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
_DCP = "torch.distributed.checkpoint"
_INERT = {
    *((f"{_DCP}.metadata", name) for name in (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata",
        "MetadataIndex", "_MEM_FORMAT_ENCODING", "StorageMeta")),
    (f"{_DCP}.filesystem", "_StorageInfo"), ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"), ("torch._utils", "_rebuild_tensor_v2"),
}  # fmt: skip
# Instructions of the pickle machine that build plain values. Those left out can take memory at will.
_INSTRUCTION = re.compile(
    "PROTO|FRAME|STOP|MARK|NONE|NEWTRUE|NEWFALSE|BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BINUNICODE|EMPTY_(DICT|LIST|TUPLE|SET)"
    "|TUPLE[123]?|LIST|DICT|APPENDS?|SETITEMS?|ADDITEMS|GLOBAL|STACK_GLOBAL|REDUCE|NEWOBJ|BUILD|BINPERSID|MEMOIZE"
    "|BINPUT|(LONG_)?BINGET"
)


class _Inert:
    """In place of an object of a class: the arguments and the state that the pickle has for it."""

    def __new__(cls, *args: Any) -> _Inert:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __init__(self, *args: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def value(self, name: str) -> Any:
        """A field of a dataclass; ValueError without it."""
        if type(self.state) is not dict or name not in self.state:
            raise ValueError(f"{name} is missing")
        return self.state[name]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _CODES:
            return _CODES[name]
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) not in _INERT:
            raise pickle.UnpicklingError(f"it names {module[:80]}.{name[:80]}, which a checkpoint does not need")
        return type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _values(data: bytes, where: str) -> Any:
    """What a pickle builds of plain values; CheckpointError for any other pickle."""
    try:
        for instruction, _, _ in pickletools.genops(data):
            if not _INSTRUCTION.fullmatch(instruction.name):
                raise ValueError(f"it has the instruction {instruction.name}, which a checkpoint does not need")
        return _Reader(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - a hostile pickle can raise anything
        raise CheckpointError(f"{where}: was not read: {error}") from None


@dataclass(frozen=True)
class Piece:
    """A block of one tensor, from `offsets` on in each dimension, and where its archive lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    first: int
    length: int


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def read_index(directory: Path) -> dict[str, Tensor]:
    """The tensors of a DCP directory by name; CheckpointError if `.metadata` is damaged or is not DCP's."""
    where = f"{directory.name}/{METADATA}"
    found = _values(read_file(directory / METADATA, _LARGEST_METADATA), where)
    try:
        places = {
            (index.value("fqn"), _sizes(index.state.get("offset") or ())): place
            for index, place in found.value("storage_data").items()
        }
        named = {name: kind for name, kind in found.value("state_dict_metadata").items() if not _is_object(kind)}
        return {name: _tensor(name, kind, places) for name, kind in named.items()}
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{where}: is not a checkpoint's: {error}") from None


def _is_object(kind: Any) -> bool:
    """Whether this is something else than a tensor, whose pickle is not read."""
    return type(kind).__name__ == "BytesStorageMetadata"


def _tensor(name: Any, kind: Any, places: dict[Any, Any]) -> Tensor:
    if type(name) is not str or not name.isprintable():
        raise ValueError("a tensor has no name")
    properties = kind.value("properties").state
    dtype = properties[0] if type(properties) is tuple else properties["dtype"]
    shape = _sizes(kind.value("size"))
    if type(dtype) is not str or dtype not in SIZES:
        raise ValueError(f"the dtype of {name[:80]} is unknown")
    pieces = tuple(_piece(chunk, shape, places, name) for chunk in kind.value("chunks"))
    if sum(math.prod(piece.sizes) for piece in pieces) != math.prod(shape):
        raise ValueError(f"the pieces of {name[:80]} are not the whole tensor")
    return Tensor(dtype, shape, pieces)


def _piece(chunk: Any, shape: tuple[int, ...], places: dict[Any, Any], name: str) -> Piece:
    offsets, sizes = _sizes(chunk.value("offsets")), _sizes(chunk.value("sizes"))
    inside = len(offsets) == len(sizes) == len(shape)
    if not inside or any(first + size > whole for first, size, whole in zip(offsets, sizes, shape)):
        raise ValueError(f"a piece of {name[:80]} lies outside of it")
    place = places[name, offsets]
    file, (first, length) = place.value("relative_path"), _sizes((place.value("offset"), place.value("length")))
    if type(file) is not str or Path(file).name != file or not file.isprintable():
        raise ValueError(f"the file of {name[:80]} is not a plain file name")
    if place.state.get("transform_descriptors"):
        raise ValueError(f"{name[:80]} is compressed, which is not supported")
    return Piece(offsets, sizes, file, first, length)


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or any(type(size) is not int or not 0 <= size <= _LARGEST for size in value):
        raise ValueError("a shape is not whole numbers")
    return value


@dataclass(frozen=True)
class Values:
    """The bytes of a piece's storage, and how its values lie in it, counted in values."""

    data: bytes
    first: int
    strides: tuple[int, ...]


def read_piece(directory: Path, tensor: Tensor, piece: Piece) -> Values:
    """The values of one piece; CheckpointError if they are not what the index says."""
    path, where = directory / piece.file, f"{directory.name}/{piece.file}"
    limit = byte_count(tensor.dtype, piece.sizes) + (1 << 20)
    if piece.length > limit:
        raise CheckpointError(f"{where}: a piece has {piece.length:,} bytes, more than its {limit:,}")
    with naming(path), open_regular(path, follow=True) as file:
        file.seek(piece.first)
        archive = b"".join(iter(lambda: file.read(min(1 << 24, piece.first + piece.length - file.tell())) or b"", b""))
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            entries = {entry.filename.partition("/")[2]: entry for entry in opened.infolist()}
            if any(entry.compress_type or entry.file_size > limit for entry in entries.values()):
                raise ValueError("it is compressed")
            if entries["data.pkl"].file_size > _LARGEST_PICKLE:
                raise ValueError("its pickle is too large")
            built = _values(opened.read(entries["data.pkl"]), where)
            (_, dtype, key, _, _), first, sizes, strides, *_ = built.args
            if (dtype, _sizes(sizes)) != (tensor.dtype, piece.sizes):
                raise ValueError("its dtype or shape is not the index's")
            return Values(opened.read(entries[f"data/{key}"]), _sizes((first,))[0], _sizes(strides))
    except (ValueError, TypeError, KeyError, AttributeError, zipfile.BadZipFile, NotImplementedError) as error:
        raise CheckpointError(f"{where}: a piece at byte {piece.first:,} is damaged: {error}") from None
