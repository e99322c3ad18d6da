"""One save, in the order of its steps on every rank: describe, begin, write, commit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.checkpoint.attempt import Attempt, Log
from training.checkpoint.disk import HashedFile, sync_tree
from training.checkpoint.errors import CheckpointError
from training.checkpoint.header import byte_count
from training.checkpoint.layout import (
    FORMAT,
    OWN_FILES,
    Manifest,
    Stored,
    Tensor,
    json_bytes,
    manifest_limit,
    signature_of,
    state_file,
    tensor_file,
)
from training.checkpoint.peers import Peers
from training.checkpoint.plan import Holding, assign, describe
from training.checkpoint.shards import Shard
from training.checkpoint.tensors import check_finite, write_tensors
from training.run import signing


@dataclass(frozen=True)
class Snapshot:
    """What a rank gives to the checkpoint of one step.

    `rank_state` is this rank's own JSON; `run_state` (JSON) must be the same on all ranks; `meta` (JSON) is taken
    from rank 0. `files` writes files of its own into the directory that it gets, the same one on every rank.
    """

    step: int
    tensors: Mapping[str, Shard]
    rank_state: Mapping[str, Any] = field(default_factory=dict)
    run_state: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    files: Callable[[Path], None] | None = None


class Save:
    """One save of one step. `run` is collective; the attempt and the manifest exist on rank 0 only.

    There, `room` is called with the bytes of all tensors before anything is written.
    """

    durable = True
    """Whether the files are synced to the disk."""

    def __init__(
        self,
        root: Path,
        run: str,
        peers: Peers,
        given: Snapshot,
        *,
        log: Log,
        room: Callable[[int], None],
        finite: bool,
    ) -> None:
        self._root, self._run, self._peers, self._given = root, run, peers, given
        self._log, self._room, self._finite = log, room, finite
        self._attempt: Attempt | None = None
        self.identity = ""
        """The attempt's unique name (rank 0, after the save has begun)."""
        self._table: dict[str, Tensor] = {}

    def run(self, already_there: Callable[[], bool]) -> bool:
        """Commit the step: True, or False if `already_there` (called on rank 0) says it is committed.

        If any rank fails, every rank gets a CheckpointError, and nothing of the attempt is left.
        """
        try:
            begun = self._peers.agree(self._describe, lambda told: None if already_there() else self._begin(told))
            if begun is None:
                return False
            sealed = self._peers.agree(lambda: self._write(begun), self._conclude)
            self._finish(begun["directory"], sealed)
            return True
        finally:
            self._close()

    def _describe(self) -> dict[str, Any]:
        """This rank's step, digest of the run's state, and tensors; refuses what cannot be stored."""
        json_bytes(self._given.rank_state, "rank_state")
        if self._finite:
            check_finite({name: shard.tensor for name, shard in self._given.tensors.items()})
        run_state = hashlib.sha256(json_bytes(self._given.run_state, "run_state")).hexdigest()
        return {"step": self._given.step, "run_state": run_state, "tensors": describe(self._given.tensors)}

    def _begin(self, told: list[dict[str, Any]]) -> dict[str, Any]:
        """Plan which rank writes what and create the directory (rank 0).

        Returns the directory's name and the files of each replicated tensor's rows, by the first of them.
        """
        for rank, theirs in enumerate(told):
            for key in ("step", "run_state"):
                if theirs[key] != told[0][key]:
                    raise CheckpointError(f"{key} of rank {rank} differs from that of rank 0")
        json_bytes(self._given.meta, "meta")
        held: list[dict[str, Holding]] = [theirs["tensors"] for theirs in told]
        self._table = assign(held)
        directory = self._open(sum(byte_count(tensor.dtype, tensor.shape) for tensor in self._table.values()))
        writers = {
            name: {str(piece.rows[0]): piece.file for piece in self._table[name].shards}
            for name, entry in held[0].items()
            if entry["replicated"]
        }
        return {"directory": directory, "writers": writers}

    def _open(self, size: int) -> str:
        """Create the directory, if there is room for so many bytes of tensors (rank 0); return its name."""
        self._room(size)
        self._attempt = Attempt.begin(self._root, self._given.step)
        self.identity = self._attempt.identity
        return self._attempt.path.name

    def _write(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Write and hash this rank's two files; return their sizes and digests as JSON."""
        directory, rank = self._root / begun["directory"], self._peers.rank
        mine = {
            name: shard.tensor
            for name, shard in self._given.tensors.items()
            if shard.row_count
            and begun["writers"].get(name, {}).get(str(shard.row_offset), tensor_file(rank)) == tensor_file(rank)
        }
        with HashedFile(directory / tensor_file(rank), durable=self.durable) as tensors:
            write_tensors(tensors, mine)
        with HashedFile(directory / state_file(rank), durable=self.durable) as state:
            state.write(json_bytes(self._given.rank_state, "rank_state"))
        if self._given.files is not None:
            own = directory / OWN_FILES
            own.mkdir(exist_ok=True)
            self._given.files(own)
        return {file.path.name: {"size": file.size, "sha256": file.digest} for file in (tensors, state)}

    def _conclude(self, written: list[dict[str, Any]]) -> Any:
        """Seal the manifest and rename the directory (rank 0), which hashes a script's own files before."""
        assert self._attempt is not None
        files: dict[str, Stored] = {}
        if self._given.files is not None:
            own = sync_tree(self._attempt.path / OWN_FILES)
            files = {f"{OWN_FILES}/{name}": Stored(size, digest) for name, (size, digest) in sorted(own.items())}
        self._attempt.commit(*self._seal(written, files))
        return None

    def _finish(self, directory: str, sealed: Any) -> None:
        """What all ranks do after `_conclude`, with its answer."""

    def _seal(self, written: list[dict[str, Any]], own: dict[str, Stored]) -> tuple[bytes, bytes | None]:
        """The manifest, and its signature with a signing key."""
        files = {name: Stored(**entry) for files in written for name, entry in files.items()}
        manifest = Manifest(
            format=FORMAT,
            step=self._given.step,
            attempt=self.identity,
            world_size=self._peers.size,
            meta=dict(self._given.meta),
            run_state=dict(self._given.run_state),
            tensors=self._table,
            files={**files, **own},
        )
        data = manifest.encode()
        if len(data) > manifest_limit(len(manifest.files)):
            raise CheckpointError(f"the manifest has {len(data):,} bytes, more than a reader accepts")
        key = signing.key()
        return data, None if key is None else signature_of(key, self._run, data)

    def _close(self) -> None:
        if self._attempt is None:
            return
        try:
            self._attempt.close()
        except CheckpointError as error:
            self._log(f"cannot remove the failed save of step {self._given.step}: {error}")
