"""Names in a checkpoint directory, and the manifest that describes a checkpoint.

    checkpoints/
      step-00000100/              a committed step: renamed to this name when complete, never written again
        MANIFEST.json             its content, with size and SHA-256 of every file, and its own digest
        rank-00000.safetensors    the tensor rows that rank 0 wrote
        rank-00000.json           rank 0's own state (random generators and the like)
      step-00000200.<id>.tmp/     an attempt; its manifest file is locked while the writer lives
      step-00000050.<id>.deleting/  being pruned
      step-00000150.bad/          failed verification, kept as evidence
      LATEST                      the newest committed step, for people and scripts; nothing here reads it

This module makes and parses all of these names.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from training.checkpoint.disk import read_file
from training.checkpoint.errors import CheckpointError

FORMAT = 1
MANIFEST = "MANIFEST.json"
LATEST = "LATEST"
TEMPORARY, DELETING, BAD = ".tmp", ".deleting", ".bad"

_STEP = re.compile(r"step-(\d{8,})")


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a committed directory's name, None for every other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def tensor_file(rank: int) -> str:
    """Name of the file with the tensor rows that `rank` wrote."""
    return f"rank-{rank:05d}.safetensors"


def state_file(rank: int) -> str:
    """Name of the file with the rank's own state, as JSON."""
    return f"rank-{rank:05d}.json"


def committed_steps(directory: Path) -> list[int]:
    """Steps with a committed directory, ascending, by name only; empty if `directory` does not exist."""
    if not directory.is_dir():
        return []
    found = (step_of(entry.name) for entry in directory.iterdir() if entry.is_dir())
    return sorted(step for step in found if step is not None)


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


class Piece(BaseModel):
    """Rows [first, end) of one tensor's dimension 0, and the file they are in. A 0-d tensor is one row."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    file: str
    rows: tuple[int, int]


class Tensor(BaseModel):
    """One named tensor; its shards tile dimension 0 in order, without gap or overlap."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Piece, ...]

    @property
    def row_count(self) -> int:
        """Length of dimension 0; 1 for a 0-d tensor."""
        return rows_of(self.shape)

    @model_validator(mode="after")
    def _tiles(self) -> Self:
        at = 0
        for shard in self.shards:
            if shard.rows[0] != at or shard.rows[1] <= at:
                raise ValueError(f"{shard.file} holds rows from {shard.rows[0]}, not from {at}")
            at = shard.rows[1]
        if at != self.row_count:
            raise ValueError(f"its shards hold {at} of {self.row_count} rows")
        return self


class Stored(BaseModel):
    """Size in bytes and SHA-256 of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    size: int
    sha256: str


class Manifest(BaseModel):
    """What a reader needs to know and check before it opens any other file of the checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int
    step: int
    attempt: str
    world_size: int
    meta: dict[str, Any]
    run_state: dict[str, Any]
    tensors: dict[str, Tensor]
    files: dict[str, Stored]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        ranks = range(self.world_size)
        expected = {name for rank in ranks for name in (tensor_file(rank), state_file(rank))}
        if set(self.files) != expected:
            raise ValueError(
                f"it lists {len(self.files)} files, world size {self.world_size} has {len(expected)}"
            )
        for name, tensor in self.tensors.items():
            for shard in tensor.shards:
                if shard.file not in expected:
                    raise ValueError(f"tensor {name!r} is in {shard.file!r}, which is not listed")
        return self

    def encode(self) -> bytes:
        """The manifest's bytes; the key `digest` is the digest of its own canonical content."""
        return _sealed(self.model_dump(mode="json"))


def _sealed(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(canonical(content)).hexdigest()
    return canonical({**content, "digest": digest}) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; ValueError if it differs in any byte from what `encode` wrote."""
    content = json.loads(data)
    if not isinstance(content, dict) or "digest" not in content:
        raise ValueError("it has no digest")
    del content["digest"]
    if _sealed(content) != data:
        raise ValueError("its content does not match its own digest")
    if content.get("format") != FORMAT:
        raise ValueError(f"format {content.get('format')} is not the format {FORMAT} this version reads")
    return Manifest.model_validate(content)


def read_manifest(directory: Path) -> Manifest:
    """The verified manifest in one step's directory; CheckpointError with the file's name otherwise."""
    path = directory / MANIFEST
    data = read_file(path)
    try:
        manifest = decode_manifest(data)
    except (ValueError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{directory.name}/{MANIFEST}: damaged: {reason}") from error
    named = step_of(directory.name)
    if named is not None and named != manifest.step:
        raise CheckpointError(f"{directory.name}/{MANIFEST}: is the manifest of step {manifest.step}")
    return manifest


def rows_of(shape: tuple[int, ...]) -> int:
    """Length of dimension 0; a 0-d tensor counts as one row."""
    return shape[0] if shape else 1
