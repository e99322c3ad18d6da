"""Checkpoints in the memory or on the disk of each node: fast, and none is lost with one node.

    <path>/<run>/<node>/step-00000100/     of each node
      MANIFEST.json, SIGNATURE.json        of the whole step, as on the shared volume
      rank-00000.safetensors, ...          the files of the node's own ranks, and copies of those of the node before it

A step counts when each of its files is on some node, with the digest in the manifest. The ranks of a node share
their files; those of other nodes come through the process group. Nothing here is synced to the disk: a copy on
another node is what survives a node.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training.checkpoint.attempt import Log, discard
from training.checkpoint.disk import HashedFile, exactly, free_bytes, read_file
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import byte_count
from training.checkpoint.layout import (
    DELETING,
    MANIFEST,
    SIGNATURE,
    TEMPORARY,
    Manifest,
    Sealed,
    committed_steps,
    decode_manifest,
    rows_of,
    sealed,
    state_file,
    step_name,
    step_of,
    tensor_file,
)
from training.checkpoint.peers import Peers
from training.checkpoint.read import LARGEST_STATE, Checkpoint
from training.checkpoint.shards import Shard
from training.checkpoint.tensors import DTYPES, byte_view
from training.checkpoint.tier import check_digest
from training.checkpoint.verify import check_contents
from training.checkpoint.write import Save, Snapshot
from training.run.files import open_regular


class Nodes:
    """The checkpoints of one run on its nodes. All methods are collective over the ranks.

    `node` names the node of this process; ranks with equal names see the same `path`.
    """

    def __init__(self, path: Path, run: str, node: str, peers: Peers, *, keep: int, log: Log) -> None:
        self.run, self._peers, self._keep, self._log = run, peers, keep, log
        self._around = path / run
        self.root = self._around / node
        names: list[str] = peers.agree(lambda: node, lambda told: told)
        self._node_of = [list(dict.fromkeys(names)).index(name) for name in names]
        """The number of each rank's node; the first rank of a node leads it."""
        self._leads = names.index(node) == peers.rank
        self.current: int | None = None
        """The step whose state the ranks hold, if the nodes got it or gave it and none was loaded since."""
        peers.agree(self._prepare, lambda _: None)

    @property
    def count(self) -> int:
        """Number of nodes."""
        return max(self._node_of) + 1

    def free(self) -> int:
        """The fewest bytes that are free on a node."""
        free: int = self._peers.agree(lambda: free_bytes(self.root), min)
        return free

    def _prepare(self) -> None:
        """Make this node's directory, and remove what killed writers left."""
        with naming(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            if not self._leads:
                return
            for path in self.root.iterdir():
                if path.suffix in (TEMPORARY, DELETING) and step_of(path.name.partition(".")[0]) is not None:
                    discard(path)
            probe = self.root / f".{secrets.token_hex(6)}"
            probe.write_bytes(b"")
            probe.unlink()

    def holds(self, step: int) -> bool:
        """Whether `step` is `current` and still whole, by names and sizes."""
        return self.current == step and step in self._whole_steps()

    def save(self, given: Snapshot) -> None:
        """Commit one step on every node, and prune older ones.

        Raises:
            CheckpointError: on every rank, if one of them fails; earlier steps are unchanged.
        """
        _NodeSave(
            self.root, self.run, self._peers, given, log=self._log, room=lambda size: None, finite=True,
            node_of=self._node_of, leads=self._leads,
        ).run(lambda: False)  # fmt: skip
        self.current = given.step
        if self._leads:
            self._prune()

    def _prune(self) -> None:
        for old in committed_steps(self.root)[: -self._keep]:
            try:
                discard(self.root / step_name(old))
            except CheckpointError as error:
                self._log(f"step {old} on this node could not be pruned: {error}")

    def newest_step(self) -> int:
        """The newest step that is whole, by names and sizes, on every rank; -1 without one."""
        return max(self._whole_steps(), default=-1)

    def _whole_steps(self) -> list[int]:
        whole: list[list[Any]] = self._peers.agree(lambda: _told(self._offers(set())), _whole)
        return [int(step) for step, *_ in whole]

    def newest(self) -> Checkpoint | None:
        """The newest step that is whole over all nodes, with every byte verified; None without one."""
        bad: set[str] = set()
        while True:
            offers = self._offers(bad)
            whole: list[list[Any]] = self._peers.agree(partial(_told, offers), _whole)
            if not whole:
                return None
            step, attempt, owners = whole[-1]
            here = [offer for offer in offers if (offer.manifest.step, offer.manifest.attempt) == (step, attempt)]
            manifest = self._manifest(here)
            mine = {name: offer.directory for offer in here for name in offer.names}
            damaged: list[str] = self._peers.agree(
                partial(self._damaged, manifest, mine), lambda told: [each for part in told for each in part]
            )
            if not damaged:
                return Spread(manifest, mine, owners, self._peers)
            if self._peers.rank == 0:
                self._log(f"step {step} on the nodes: damaged files are left out: {', '.join(damaged)}")
            bad |= {*damaged}

    def _manifest(self, here: list[Offer]) -> Manifest:
        """The manifest of a step, from the first rank that has it: a new node has none."""
        text: str = self._peers.agree(
            lambda: here[0].sealed.data.decode() if here else None,
            lambda told: next(each for each in told if each is not None),
        )
        return decode_manifest(text.encode())

    def _offers(self, bad: set[str]) -> list[Offer]:
        """What this node has of each step, without the files `bad`."""
        offers = []
        for root in sorted(path for path in self._around.iterdir() if path.is_dir() and not path.is_symlink()):
            for step in committed_steps(root):
                directory = root / step_name(step)
                try:
                    found = sealed(directory, self.run)
                    manifest = found.manifest()
                except CheckpointError as error:
                    self._log(f"{directory} is skipped: {error}")
                    continue
                sizes = {name: stored.size for name, stored in manifest.files.items()}
                names = [n for n in sizes if _size(directory / n) == sizes[n] and str(directory / n) not in bad]
                offers.append(Offer(manifest, found, directory, names))
        return offers

    def _damaged(self, manifest: Manifest, mine: Mapping[str, Path]) -> list[str]:
        """The damaged ones of this rank's share of the files on its node."""
        here = [rank for rank, node in enumerate(self._node_of) if node == self._node_of[self._peers.rank]]
        damaged = []
        for name in sorted(mine)[here.index(self._peers.rank) :: len(here)]:
            try:
                check_contents(mine[name], manifest, [name])
            except CheckpointError:
                damaged.append(str(mine[name] / name))
        return damaged


@dataclass(frozen=True)
class Offer:
    """A directory of a step on this node, and the good files in it."""

    manifest: Manifest
    sealed: Sealed
    directory: Path
    names: list[str]


def _told(offers: Iterable[Offer]) -> list[list[Any]]:
    return [[each.manifest.step, each.manifest.attempt, len(each.manifest.files), each.names] for each in offers]


def _whole(told: list[list[list[Any]]]) -> list[list[Any]]:
    """Step, attempt, and the rank that gives each file, of the steps of which each file is on some node.

    Each file is given by the rank that gives least so far.
    """
    givers: dict[tuple[int, str, int], dict[str, list[int]]] = {}
    for rank, offers in enumerate(told):
        for step, attempt, count, names in offers:
            files = givers.setdefault((step, attempt, count), {})
            for name in names:
                files.setdefault(name, []).append(rank)
    whole = []
    for (step, attempt, count), files in sorted(givers.items()):
        if len(files) == count:
            load = [0] * len(told)
            owners = {}
            for name in sorted(files):
                owners[name] = min(files[name], key=lambda rank: (load[rank], rank))
                load[owners[name]] += 1
            whole.append([step, attempt, owners])
    return whole


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return -1


class _NodeSave(Save):
    """A save whose directory is on every node; `_finish` copies the files to the next node and commits."""

    durable = False

    def __init__(self, *given: Any, node_of: list[int], leads: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._node_of, self._leads = node_of, leads
        self._name = ""

    def _open(self, size: int) -> str:
        self.identity = secrets.token_hex(6)
        return f"{step_name(self._given.step)}.{self.identity}{TEMPORARY}"

    def _write(self, begun: dict[str, Any]) -> dict[str, Any]:
        self._name = begun["directory"]
        with naming(self._root / self._name):
            (self._root / self._name).mkdir(exist_ok=True)
        return super()._write(begun)

    def _conclude(self, written: list[dict[str, Any]]) -> Any:
        data, signature = self._seal(written, {})
        return [data.decode(), None if signature is None else signature.decode()]

    def _finish(self, directory: str, sealed: Any) -> None:
        data, signature = (None if text is None else text.encode() for text in sealed)
        assert data is not None
        self._peers.agree(lambda: self._copy(self._root / directory, decode_manifest(data)), lambda _: None)
        self._peers.agree(lambda: self._commit(self._root / directory, data, signature), lambda _: None)

    def _copy(self, directory: Path, manifest: Manifest) -> None:
        """Send this rank's files to a rank of the next node, and write those of the node before."""
        names = [name for rank in range(self._peers.size) for name in (tensor_file(rank), state_file(rank))]
        targets = neighbours(self._node_of)
        transfers = [
            (rank, targets[rank], manifest.files[name].size)
            for rank in range(self._peers.size) if targets[rank] != rank
            for name in (tensor_file(rank), state_file(rank))
        ]  # fmt: skip
        with ExitStack() as held:
            read = {
                number: held.enter_context(open_regular(directory / names[number]))
                for number, (source, _, _) in enumerate(transfers) if source == self._peers.rank
            }  # fmt: skip
            write = {
                number: held.enter_context(HashedFile(directory / names[number], durable=False))
                for number, (_, target, _) in enumerate(transfers) if target == self._peers.rank
            }  # fmt: skip
            self._peers.pass_on(
                transfers, lambda number, count: exactly(read[number].read, count), lambda n, data: write[n].write(data)
            )
        for number, file in write.items():
            check_digest(file.digest, file.size, manifest, names[number])

    def _commit(self, directory: Path, data: bytes, signature: bytes | None) -> None:
        """Write the manifest and rename the directory, for all ranks of this node."""
        if not self._leads:
            return
        for name, content in ((SIGNATURE, signature), (MANIFEST, data)):
            if content is not None:
                with HashedFile(directory / name, durable=False) as file:
                    file.write(content)
        final = self._root / step_name(self._given.step)
        if final.exists():  # of an attempt whose steps were undone
            discard(final)
        with naming(directory):
            os.rename(directory, final)
        self._name = ""

    def _close(self) -> None:
        if self._name and self._leads and (self._root / self._name).exists():
            discard(self._root / self._name)


def neighbours(node_of: list[int]) -> list[int]:
    """For each rank the one on the next node that keeps a copy of its files; itself if there is one node only."""
    ranks = [[rank for rank, other in enumerate(node_of) if other == node] for node in range(max(node_of) + 1)]
    found = []
    for rank, node in enumerate(node_of):
        there = ranks[(node + 1) % len(ranks)]
        found.append(rank if len(ranks) == 1 else there[ranks[node].index(rank) % len(there)])
    return found


class Spread(Checkpoint):
    """A step whose files lie on several nodes. `load` is collective: ranks send each other the rows they lack."""

    def __init__(self, manifest: Manifest, here: Mapping[str, Path], owners: Mapping[str, int], peers: Peers) -> None:
        super().__init__(Path(step_name(manifest.step)), manifest)
        self._here, self._owners, self._peers = here, owners, peers
        states: dict[str, str] = {}
        for part in peers.agree(self._own_states, lambda told: told):
            states.update(part)
        self._states = {name: text.encode() for name, text in states.items()}

    def _own_states(self) -> dict[str, str]:
        own = [name for name, owner in self._owners.items() if owner == self._peers.rank and name.endswith(".json")]
        return {name: read_file(self._here[name] / name, LARGEST_STATE).decode() for name in own}

    def _state(self, name: str) -> bytes:
        return self._states[name]

    def _directory(self, file_name: str) -> Path:
        return self._here[file_name]

    def load(self, tensors: Mapping[str, Shard], *, only: str | None = None) -> None:
        """As `Checkpoint.load`; what this node has is read here, and the rest comes from the ranks that have it."""
        self._check(tensors, only or "")
        lacking: dict[int, list[tuple[str, str, int, torch.Tensor]]] = {}
        for name, shard in tensors.items():
            end = shard.row_offset + shard.row_count
            for file_name, row, part in self._parts(name, shard.tensor.detach(), shard.row_offset, end):
                if file_name in self._here:
                    self._read(file_name, name, row, part)
                else:
                    lacking.setdefault(self._owners[file_name], []).append((file_name, name, row, part))
        asked = {owner: [[f, n, row, rows_of(tuple(p.shape))] for f, n, row, p in wanted]
                 for owner, wanted in lacking.items()}  # fmt: skip
        everyone: list[dict[str, Any]] = self._peers.agree(lambda: asked, lambda told: told)
        wishes = {(int(owner), rank): rows for rank, told in enumerate(everyone) for owner, rows in told.items()}
        pairs = sorted(wishes)
        transfers = [(*pair, sum(self._nbytes(n, count) for _, n, _, count in wishes[pair])) for pair in pairs]
        sending = {at: _Pieces(self._rows(wishes[pair])) for at, pair in enumerate(pairs)
                   if pair[0] == self._peers.rank}  # fmt: skip
        filling = {at: _Filling([part for *_, part in lacking[pair[0]]]) for at, pair in enumerate(pairs)
                   if pair[1] == self._peers.rank}  # fmt: skip
        self._peers.agree(
            lambda: self._peers.pass_on(
                transfers, lambda at, count: sending[at].next(count), lambda at, data: filling[at].add(data)
            ),
            lambda _: None,
        )

    def _nbytes(self, name: str, rows: int) -> int:
        stored = self._manifest.tensors[name]
        return byte_count(stored.dtype, (rows, *stored.shape[1:]) if stored.shape else ())

    def _rows(self, wanted: list[tuple[str, str, int, int]]) -> Iterator[memoryview]:
        """The bytes of rows of files that are here."""
        for file_name, name, row, count in wanted:
            stored = self._manifest.tensors[name]
            out = torch.empty((count, *stored.shape[1:]) if stored.shape else (), dtype=DTYPES[stored.dtype])
            self._read(file_name, name, row, out)
            yield byte_view(out)


class _Pieces:
    """Pieces of bytes as one stream."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def next(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            if not self._rest:
                self._rest = next(self._pieces)
            taken = self._rest[: count - len(found)]
            found += taken
            self._rest = self._rest[len(taken) :]
        return bytes(found)


class _Filling:
    """Tensors that are filled one after the other from a stream of bytes."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self._parts = [part for part in parts if part.numel()]
        self._begin()

    def _begin(self) -> None:
        if self._parts:
            self._buffer = torch.empty(self._parts[0].shape, dtype=self._parts[0].dtype)
            self._rest = byte_view(self._buffer)

    def add(self, data: memoryview) -> None:
        while data:
            count = min(len(data), len(self._rest))
            self._rest[:count] = data[:count]
            self._rest, data = self._rest[count:], data[count:]
            if not self._rest:
                self._parts.pop(0).copy_(self._buffer)
                self._begin()
