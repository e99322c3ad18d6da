"""Names in a checkpoint directory, and the manifest that describes a checkpoint.

    checkpoints/
      step-00000100/              a committed step: renamed to this name when complete, never written again
        MANIFEST.json             its content, with size and SHA-256 of every file, and its own digest
        SIGNATURE.json            with a signing key: the run's name, and the signature of name and manifest
        rank-00000.safetensors    the tensor rows that rank 0 wrote
        rank-00000.json           rank 0's own state (random generators and the like)
        files/...                 files that a script wrote itself (`training.agent.api`)
      step-00000200.<id>.tmp/     an attempt; its manifest file is locked while the writer lives
      step-00000050.<id>.deleting/  being pruned
      step-00000150.bad/          failed verification, kept as evidence
      LATEST                      the newest committed step, for people and scripts; nothing here reads it

This module makes and parses all of these names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from training.checkpoint.disk import read_file
from training.checkpoint.errors import CheckpointError, ForeignError, naming
from training.checkpoint.header import SIZES, byte_count, check_density
from training.run import signing
from training.run.directory import RunDir

FORMAT = 1
MANIFEST = "MANIFEST.json"
SIGNATURE = "SIGNATURE.json"
LATEST = "LATEST"
TEMPORARY, DELETING, BAD = ".tmp", ".deleting", ".bad"
OWN_FILES = "files"

_STEP = re.compile(r"step-([0-9]{8,15})")
_PURPOSE = "checkpoint manifest"
_FIRST_BYTES, _BYTES_OF_FILE, _MOST_FILES = 2 << 20, 128 << 10, 500  # limit of a manifest, by its files
_LARGEST = 2**63 - 1  # of a size or a tensor's number of values
_LONGEST_NAME = 512  # characters of the name of a tensor or a file
_MOST_DIMENSIONS = 64
_HEAD = re.compile(rb'\{"attempt":"[0-9a-f]{1,64}",("digest":"([0-9a-f]{64})",)')  # of the canonical encoding
_TAIL = re.compile(rb',"world_size":([0-9]{1,19})\}\n$')
_NO_DIGEST = "it has no digest"
_ATTEMPT, _SHA256 = re.compile("[0-9a-f]{1,64}"), re.compile("[0-9a-f]{64}")


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a committed directory's name, None for every other name."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else None
    return step if step is not None and step_name(step) == name else None


def tensor_file(rank: int) -> str:
    """Name of the file with the tensor rows that `rank` wrote."""
    return f"rank-{rank:05d}.safetensors"


def state_file(rank: int) -> str:
    """Name of the file with the rank's own state, as JSON."""
    return f"rank-{rank:05d}.json"


def committed_steps(directory: Path) -> list[int]:
    """Steps with a committed directory, ascending, by name only; empty if `directory` does not exist.

    A link is not a committed step: a writer renames directories.
    """
    if not directory.is_dir():
        return []
    with naming(directory), os.scandir(directory) as entries:
        found = ((step_of(entry.name), entry) for entry in entries)
        return sorted(step for step, entry in found if step is not None and entry.is_dir(follow_symlinks=False))


def newest_committed(directory: Path) -> Path | None:
    """Directory of the newest committed step, by name only; None without one."""
    steps = committed_steps(directory)
    return directory / step_name(steps[-1]) if steps else None


def quarantined(directory: Path) -> list[tuple[str, int]]:
    """Names and steps of the quarantined directories."""
    found = ((entry.name, step_of(entry.name.split(".", 1)[0])) for entry in directory.glob(f"*{BAD}"))
    return sorted((name, step) for name, step in found if step is not None)


def canonical(value: Any) -> bytes:
    """The one JSON encoding of `value`; ValueError or TypeError for what JSON cannot hold (NaN included)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def json_bytes(value: Any, what: str) -> bytes:
    """As `canonical`, with a CheckpointError that names `what` if it is not JSON."""
    try:
        return canonical(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not JSON: {error}") from error


@dataclass(frozen=True)
class Piece:
    """Rows [first, end) of one tensor's dimension 0, and the file they are in. A 0-d tensor is one row."""

    file: str
    rows: tuple[int, int]


@dataclass(frozen=True)
class Tensor:
    """One named tensor; its shards tile dimension 0 in order, without gap or overlap (else a ValueError)."""

    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Piece, ...]

    @property
    def row_count(self) -> int:
        """Length of dimension 0; 1 for a 0-d tensor."""
        return rows_of(self.shape)

    def __post_init__(self) -> None:
        if self.dtype not in SIZES:
            raise ValueError(f"dtype {self.dtype[:20]!r} is not one of {', '.join(SIZES)}")
        if len(self.shape) > _MOST_DIMENSIONS or math.prod(size or 1 for size in self.shape) > _LARGEST:
            raise ValueError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions or 2^63 values")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("a file holds rows of one tensor twice")
        at = 0
        for shard in self.shards:
            if shard.rows[0] != at or shard.rows[1] <= at:
                raise ValueError(f"{shard.file[:80]} holds rows from {shard.rows[0]}, not from {at}")
            at = shard.rows[1]
        if at != self.row_count:
            raise ValueError(f"its shards hold {at} of {self.row_count} rows")


@dataclass(frozen=True)
class Stored:
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Outline:
    """The part of a manifest that a list of many checkpoints needs."""

    attempt: str
    step: int
    world_size: int
    run_state: dict[str, Any]
    files: dict[str, Stored]

    def __post_init__(self) -> None:
        listed = {name for name in self.files if not _is_own_file(name)}
        count = 2 * self.world_size
        ranks = range(self.world_size if count == len(listed) else 0)
        expected = {name for rank in ranks for name in (tensor_file(rank), state_file(rank))}
        if not expected or listed != expected:
            raise ValueError(f"it lists {len(listed)} files, world size {self.world_size} has {count}")

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(stored.size for stored in self.files.values())


@dataclass(frozen=True)
class Manifest(Outline):
    """What a reader needs to know and check before it opens any other file; ValueError if it is not sound."""

    format: int
    meta: dict[str, Any]
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, tensor in self.tensors.items():
            if len(name) > _LONGEST_NAME or not name.isprintable():
                raise ValueError(f"{name[:80]!r} cannot be a tensor's name")
            for shard in tensor.shards:
                if shard.file not in self.files or _is_own_file(shard.file):
                    raise ValueError(f"tensor {name!r} is in {shard.file[:80]!r}, which is not listed")
        for name, held in self.contents.items():
            if sum(byte_count(dtype, shape) for dtype, shape in held.values()) > self.files[name].size:
                raise ValueError(f"the tensors in {name} have more bytes than the file")

    @cached_property
    def contents(self) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
        """By file, the tensors whose rows are in it: dtype, and shape of those rows."""
        held: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
        for name, tensor in self.tensors.items():
            for shard in tensor.shards:
                rows = (shard.rows[1] - shard.rows[0], *tensor.shape[1:]) if tensor.shape else ()
                held.setdefault(shard.file, {})[name] = (tensor.dtype, rows)
        return held

    def encode(self) -> bytes:
        """The manifest's bytes; the key `digest` is the digest of its own canonical content."""
        tensors = {
            name: {**vars(tensor), "shards": [vars(piece) for piece in tensor.shards]}
            for name, tensor in self.tensors.items()
        }
        files = {name: vars(stored) for name, stored in self.files.items()}
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return _sealed({**own, "tensors": tensors, "files": files})


def decode_outline(data: bytes) -> Outline:
    """The outline of the manifest in `data`, a tenth of the work; ValueError if a byte is not as it was written.

    `tensors` is nearly all of a manifest. It is hashed with the rest, but not parsed.
    """
    head, tail = _HEAD.match(data), _TAIL.search(data)
    if head is None or tail is None:
        raise ValueError(_NO_DIGEST)
    if hashlib.sha256(data[: head.start(1)] + data[head.end(1) :].rstrip(b"\n")).hexdigest().encode() != head[2]:
        raise ValueError("its content does not match its own digest")
    check_density(data)
    text, decoder = data.decode(), json.JSONDecoder()
    found, at = {"world_size": json.loads(tail[1])}, 1
    while True:
        name, at = decoder.raw_decode(text, at)
        if name == "tensors":
            break
        found[name], at = decoder.raw_decode(text, at + 1)
        at += 1
    _check_format(found)
    return Outline(**_outlined(found))


def _outlined(values: dict[str, Any]) -> dict[str, Any]:
    """The values of an outline, checked; ValueError with the key of a wrong or missing one."""
    files = _object(values.get("files"), "files")
    return {
        "attempt": _text(values.get("attempt"), "attempt", _ATTEMPT),
        "step": _count(values.get("step"), "step"),
        "world_size": _count(values.get("world_size"), "world_size"),
        "run_state": _object(values.get("run_state"), "run_state"),
        "files": {name: _stored(value, name) for name, value in files.items()},
    }


def _check_format(content: dict[str, Any]) -> None:
    if content.get("format") != FORMAT:
        raise ValueError(f"format {content.get('format')!r:.20} is not the format {FORMAT} this version reads")


def _is_own_file(name: str) -> bool:
    """Whether this is the path of a script's own file: below `files`, and nowhere else."""
    first, *parts = name.split("/")
    safe = len(name) <= _LONGEST_NAME and name.isprintable() and not {"", ".", ".."} & {*parts}
    return first == OWN_FILES and bool(parts) and safe


def _manifest(content: dict[str, Any]) -> Manifest:
    """The manifest in parsed JSON; ValueError with the key for a value of the wrong type or size."""
    values = _values(content, Manifest, "manifest")
    return Manifest(
        **_outlined(values),
        format=values["format"],
        meta=_object(values["meta"], "meta"),
        tensors={name: _tensor(value, name) for name, value in _object(values["tensors"], "tensors").items()},
    )


def _tensor(value: Any, name: str) -> Tensor:
    where = f"tensors.{name[:80]}"
    values = _values(value, Tensor, where)
    shape = tuple(_count(size, f"{where}.shape") for size in _list(values["shape"], f"{where}.shape"))
    pieces = (_values(piece, Piece, f"{where}.shards") for piece in _list(values["shards"], f"{where}.shards"))
    shards = tuple(Piece(_text(piece["file"], f"{where}.file"), _rows(piece["rows"], where)) for piece in pieces)
    try:
        return Tensor(_text(values["dtype"], f"{where}.dtype"), shape, shards)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _rows(value: Any, where: str) -> tuple[int, int]:
    numbers = _list(value, f"{where}.rows")
    if len(numbers) != 2:
        raise ValueError(f"{where}.rows: two numbers are needed")
    return _count(numbers[0], f"{where}.rows"), _count(numbers[1], f"{where}.rows")


def _stored(value: Any, name: str) -> Stored:
    where = f"files.{name[:80]}"
    values = _values(value, Stored, where)
    return Stored(_count(values["size"], f"{where}.size"), _text(values["sha256"], f"{where}.sha256", _SHA256))


def _values(value: Any, kind: type, where: str) -> dict[str, Any]:
    """The object `value`, which has exactly the keys of the class `kind`."""
    names = {one.name for one in fields(kind)}
    found = _object(value, where)
    if found.keys() != names:
        wrong = sorted(found.keys() ^ names)[0]
        raise ValueError(f"{where}: {wrong[:80]!r} is {'unknown' if wrong in found else 'missing'}")
    return found


def _object(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"{where}: an object is needed")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{where}: a list is needed")
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"{where}: a whole number from 0 to 2^63 - 1 is needed")
    return value


def _text(value: Any, where: str, pattern: re.Pattern[str] | None = None) -> str:
    if type(value) is not str or (pattern is not None and not pattern.fullmatch(value)):
        raise ValueError(f"{where}: {'a text' if pattern is None else pattern.pattern} is needed")
    return value


def _sealed(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(canonical(content)).hexdigest()
    return canonical({**content, "digest": digest}) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; ValueError if it differs in any byte from what `encode` wrote."""
    check_density(data)
    try:
        content = json.loads(data)
    except ValueError:
        content = None  # the message of a JSON parser does not help the user
    if not isinstance(content, dict) or "digest" not in content:
        raise ValueError(_NO_DIGEST)
    del content["digest"]
    if _sealed(content) != data:
        raise ValueError("its content does not match its own digest")
    _check_format(content)
    return _manifest(content)


def manifest_limit(file_count: int) -> int:
    """Most bytes of a manifest beside so many files: a bomb of small values needs 12 times its size."""
    return _FIRST_BYTES + _BYTES_OF_FILE * min(file_count, _MOST_FILES)


def signature_of(key: bytes, run: str, manifest: bytes) -> bytes:
    """The content of SIGNATURE.json: the manifest, which names step and files, belongs to the run `run`."""
    return canonical({"run": run, "signature": signing.sign(key, _PURPOSE, _signed(run, manifest))}) + b"\n"


def _signed(run: str, manifest: bytes) -> bytes:
    return canonical([run, hashlib.sha256(manifest).hexdigest()])


@dataclass(frozen=True)
class Sealed:
    """The manifest of a step as it was found, unverified, and how its signature is read."""

    name: str
    """The step's directory, for messages."""
    run: str
    """The run that it must be signed for."""
    data: bytes
    signature: Callable[[], bytes]
    """Raises CheckpointError, with a FileNotFoundError as its cause if there is none."""

    def signer(self, keys: tuple[bytes, ...]) -> str:
        """Id of the key that signed this manifest for the run.

        Raises:
            ForeignError: it has no signature, one of another run, or one that none of the keys made.
        """
        where = f"{self.name}/{MANIFEST}"
        try:
            found = json.loads(self.signature())
            named, signature = str(found["run"]), str(found["signature"])
        except CheckpointError as error:
            if error.transient:
                raise
            missing = isinstance(error.__cause__, FileNotFoundError)
            raise ForeignError(f"{where}: is not signed, but this job has a key" if missing else str(error)) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ForeignError(f"{self.name}/{SIGNATURE}: damaged") from None
        if not signing.verify(keys, _PURPOSE, _signed(named, self.data), signature):
            raise ForeignError(f"{where}: is not signed with this job's key")
        if named != self.run:
            raise ForeignError(f"{where}: is signed for run {named!r}, not for {self.run!r}")
        return signature.partition(":")[0]

    def manifest(self) -> Manifest:
        """The verified manifest; with a signing key it must be signed as one of the run.

        Raises:
            CheckpointError: with the file's name: it is damaged, or that of another step.
            ForeignError: it is not signed, or not by this key and for this run.
        """
        return self._opened(decode_manifest)

    def outline(self) -> Outline:
        """The verified outline. Raises as `manifest`."""
        return self._opened(decode_outline)

    def _opened(self, decode: Callable[[bytes], Read]) -> Read:
        if keys := signing.keys():
            self.signer(keys)
        try:
            manifest = decode(self.data)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.name}/{MANIFEST}: damaged: {error}") from error
        named = step_of(self.name)
        if named is not None and named != manifest.step:
            raise CheckpointError(f"{self.name}/{MANIFEST}: is the manifest of step {manifest.step}")
        return manifest


Read = TypeVar("Read", Outline, Manifest)


def sealed(directory: Path, run: str | None = None) -> Sealed:
    """The manifest in one step's directory, of the run `run` or else of the one that the directory is in.

    Raises:
        CheckpointError: it is missing, is not a regular file, or is too large.
    """
    with naming(directory / MANIFEST), os.scandir(directory) as entries:
        limit = manifest_limit(sum(1 for _ in itertools.islice(entries, _MOST_FILES)))
    data = read_file(directory / MANIFEST, limit)
    return Sealed(directory.name, run or run_of(directory), data, lambda: read_file(directory / SIGNATURE, 4096))


def read_manifest(directory: Path, run: str | None = None) -> Manifest:
    """The verified manifest in one step's directory. Raises as `sealed` and `Sealed.manifest`."""
    return sealed(directory, run).manifest()


def run_of(directory: Path) -> str:
    """Name of the run that a step's directory belongs to."""
    return RunDir(Path(os.path.abspath(directory)).parent.parent).name


def rows_of(shape: tuple[int, ...]) -> int:
    """Length of dimension 0; a 0-d tensor counts as one row."""
    return shape[0] if shape else 1
