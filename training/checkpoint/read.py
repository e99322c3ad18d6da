"""A committed checkpoint, opened: its state, its tensors by rows, and the newest one of a directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from training.checkpoint.disk import read_file
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import Entry
from training.checkpoint.layout import (
    OWN_FILES,
    Manifest,
    Tensor,
    committed_steps,
    read_manifest,
    rows_of,
    state_file,
    step_name,
)
from training.checkpoint.shards import Shard, check_shard
from training.checkpoint.tensors import CODES, DTYPES, read_into
from training.checkpoint.verify import check_contents, check_header, check_sizes
from training.run.files import open_regular

LARGEST_STATE = 64 << 20  # bytes of one rank's own state
_LISTINGS = 20  # how often `newest` lists the steps if all that it found were pruned meanwhile


class Checkpoint:
    """One committed step. Made by `open_checkpoint`, `newest` and `Store.latest`, which verify it."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.step = manifest.step
        self.world_size = manifest.world_size
        """Ranks that saved it."""
        self.run_state: dict[str, Any] = manifest.run_state
        self.meta: dict[str, Any] = manifest.meta
        self._manifest = manifest
        self._places: dict[str, dict[str, Entry]] = {}

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._manifest.tensors)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """What is stored under each name: dtype, shape, and where."""
        return self._manifest.tensors

    def recorded(self, key: str) -> dict[str, Any]:
        """A JSON object of `meta`; CheckpointError if it is missing or something else."""
        value = self.meta.get(key)
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.directory.name}: its metadata have no {key}")
        return value

    @property
    def files(self) -> Path | None:
        """The directory of the files that a script wrote itself, None without such files."""
        own = f"{OWN_FILES}/"
        return self.directory / OWN_FILES if any(n.startswith(own) for n in self._manifest.files) else None

    def rank_state(self, rank: int) -> dict[str, Any] | None:
        """State that `rank` saved, None if that rank did not exist then."""
        if not 0 <= rank < self.world_size:
            return None
        name = state_file(rank)
        data = self._state(name)
        if hashlib.sha256(data).hexdigest() != self._manifest.files[name].sha256:
            raise CheckpointError(f"{self.directory.name}/{name}: its content does not match its digest")
        try:
            state = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.directory.name}/{name}: not JSON ({error})") from None
        if not isinstance(state, dict):
            raise CheckpointError(f"{self.directory.name}/{name}: does not hold a JSON object")
        return state

    def _state(self, name: str) -> bytes:
        return read_file(self.directory / name, LARGEST_STATE)

    def load(self, tensors: Mapping[str, Shard], *, only: str | None = None) -> None:
        """Fill the shards in place, reading only their rows; for any world size, replicated or sharded.

        The names must be exactly those of the checkpoint, or of its tensors that begin with `only`. Raises
        CheckpointError with the tensor whose name, shape or dtype differs, before anything is filled.
        """
        self._check(tensors, only or "")
        for name, shard in tensors.items():
            self._fill(name, shard.tensor.detach(), shard.row_offset, shard.row_offset + shard.row_count)

    def full(self, name: str) -> torch.Tensor:
        """The whole tensor, on the CPU."""
        entry = self._manifest.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{self.directory.name}: has no tensor {name!r}")
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        self._fill(name, whole, 0, entry.row_count)
        return whole

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        """Fill `out` (of the tensor's dtype) with its rows from `row` on, from all files that hold them."""
        self._fill(name, out, row, row + rows_of(tuple(out.shape)))

    def _check(self, tensors: Mapping[str, Shard], prefix: str) -> None:
        stored = {name for name in self._manifest.tensors if name.startswith(prefix)}
        for name in sorted(stored ^ tensors.keys()):
            where = "stored, but not wanted" if name in stored else "wanted, but not stored"
            raise CheckpointError(f"{self.directory.name}: tensor {name!r} is {where}")
        for name, shard in tensors.items():
            self._check_like(name, shard)

    def _check_like(self, name: str, shard: Shard) -> None:
        check_shard(name, shard)
        entry = self._manifest.tensors[name]
        stored = {"shape": tuple(entry.shape), "dtype": entry.dtype}
        wanted = {"shape": tuple(shard.global_shape), "dtype": CODES[shard.tensor.dtype]}
        for key, value in stored.items():
            if wanted[key] != value:
                trouble = f"has {key} {value}, not {wanted[key]}"
                raise CheckpointError(f"{self.directory.name}: tensor {name!r} {trouble}")

    def _fill(self, name: str, out: torch.Tensor, first: int, end: int) -> None:
        """Copy rows [first, end) of the tensor into `out`."""
        for file_name, row, part in self._parts(name, out, first, end):
            self._read(file_name, name, row, part)

    def _parts(self, name: str, out: torch.Tensor, first: int, end: int) -> Iterator[tuple[str, int, torch.Tensor]]:
        """The files that hold rows [first, end) of the tensor: the row there, and the part of `out` for them."""
        for shard in self._manifest.tensors[name].shards:
            low, high = max(first, shard.rows[0]), min(end, shard.rows[1])
            if low < high:
                yield shard.file, low - shard.rows[0], out[low - first : high - first] if out.ndim else out

    def _directory(self, file_name: str) -> Path:
        """The directory on this machine that has the file."""
        return self.directory

    def _read(self, file_name: str, name: str, row: int, out: torch.Tensor) -> None:
        directory = self._directory(file_name)
        path = directory / file_name
        if file_name not in self._places:
            self._places[file_name] = check_header(directory, self._manifest, file_name)
        place = self._places[file_name][name]
        row_bytes = out.element_size() * (out[0].numel() if out.ndim else 1)
        with naming(path), open_regular(path) as file:
            read_into(path, file, place.first + row * row_bytes, out)


def open_checkpoint(directory: Path, *, verify: bool = True) -> Checkpoint:
    """The checkpoint in one step's directory, for a single process.

    Manifest and sizes are always checked, digests only with `verify`. Raises CheckpointError with the file.
    """
    manifest = read_manifest(directory)
    check = check_contents if verify else check_sizes
    check(directory, manifest, sorted(manifest.files))
    return Checkpoint(directory, manifest)


def newest(directory: Path, *, verify: bool = True, log: Callable[[str], None] | None = None) -> Checkpoint | None:
    """The newest good checkpoint under `directory`, for a process beside a running job; None without one.

    Only reads. Broken checkpoints are reported to `log` and skipped. If a writer prunes the listed ones, it
    lists again, because a newer one exists then.
    """
    for _ in range(_LISTINGS):
        steps = committed_steps(directory)
        pruned = not steps  # a listing while directories are renamed can miss the new ones
        for step in reversed(steps):
            path = directory / step_name(step)
            try:
                return open_checkpoint(path, verify=verify)
            except CheckpointError as error:
                pruned = pruned or not path.exists()
                if log is not None and path.exists():
                    log(f"step {step} is skipped: {error}")
        if not pruned:
            return None
    return None
