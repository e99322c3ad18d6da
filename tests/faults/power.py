"""Power loss: of the calls of a save, those that were not synced are lost, kept or torn in any combination.

The calls are recorded while a step is saved for real. A crash after some calls leaves what was synced before it, and
any part of the rest: names of a directory are durable once the directory was synced, bytes of a file once the file was.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from tests.faults.bed import Bed, Outcome
from tests.training.checkpoint.values import assert_holds, snapshot
from training.checkpoint.read import newest
from training.checkpoint.store import Store

ROOT = 0  # number of the node of the recorded directory
SUBSETS = 5  # drawn for each point, beside "nothing that was not synced" and "everything"


@dataclass
class Node:
    """A directory with its entries, or a file with its bytes."""

    entries: dict[str, int] | None = None
    data: bytearray = field(default_factory=bytearray)

    def copy(self) -> Node:
        return Node(None if self.entries is None else dict(self.entries), bytearray(self.data))


Tree = dict[int, Node]


@dataclass(frozen=True)
class Call:
    """One recorded call: bytes of a file, a change of a directory's names, or a sync of one of them."""

    kind: Literal["bytes", "names", "sync"]
    node: int
    offset: int = 0
    data: bytes = b""
    removes: tuple[str, ...] = ()
    adds: tuple[tuple[str, int], ...] = ()

    def apply(self, tree: Tree, *, half: bool = False) -> None:
        node = tree[self.node]
        if self.kind == "bytes":
            data = self.data[: len(self.data) // 2] if half else self.data
            node.data.extend(b"\0" * (self.offset - len(node.data)))
            node.data[self.offset : self.offset + len(data)] = data
        elif self.kind == "names" and node.entries is not None:
            for name in self.removes:
                node.entries.pop(name, None)
            node.entries.update(self.adds)


class Recorder:
    """Records the calls of module os below one directory while they are carried out."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.live: Tree = {}
        self.calls: list[Call] = []
        self._files: dict[int, int] = {}  # descriptor → node
        self._read(self.root)
        self.before = {number: node.copy() for number, node in self.live.items()}
        self._wrappers = {
            "open": self.on_open, "write": self.on_write, "fsync": self.on_fsync, "close": self.on_close,
            "mkdir": self.on_mkdir, "rename": self.on_rename, "replace": self.on_rename, "unlink": self.on_remove,
            "rmdir": self.on_remove,
        }  # fmt: skip
        self._real: dict[str, Any] = {name: getattr(os, name) for name in self._wrappers}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record inside the block."""
        with ExitStack() as stack:
            for name, wrapper in self._wrappers.items():
                stack.enter_context(mock.patch.object(os, name, wrapper))
            yield

    def _read(self, path: Path) -> int:
        number = len(self.live)
        node = self.live[number] = Node({} if path.is_dir() else None)
        if node.entries is None:
            node.data.extend(path.read_bytes())
        else:
            node.entries.update({each.name: self._read(each) for each in sorted(path.iterdir())})
        return number

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """The directory's node and the name of a path, None if it is outside."""
        base = Path(os.readlink(f"/proc/self/fd/{dir_fd}")) if dir_fd is not None else Path.cwd()
        full = base / os.fspath(path)
        if full != self.root and self.root not in full.parents:
            return None
        number, name = ROOT, ""
        for part in full.relative_to(self.root).parts:
            number = self._entries(number)[name] if name else number
            name = part
        return number, name

    def _entries(self, number: int) -> dict[str, int]:
        return self.live[number].entries or {}

    def _add(self, call: Call) -> None:
        self.calls.append(call)
        call.apply(self.live)

    def _new(self, place: tuple[int, str], entries: dict[str, int] | None) -> None:
        number = len(self.live)
        self.live[number] = Node(entries)
        self.before[number] = self.live[number].copy()
        self._add(Call("names", place[0], adds=((place[1], number),)))

    def on_open(self, path: Any, flags: int, *rest: Any, dir_fd: int | None = None, **more: Any) -> int:
        place = self._place(path, dir_fd)
        descriptor: int = self._real["open"](path, flags, *rest, dir_fd=dir_fd, **more)
        if place is not None:
            number, name = place
            if flags & os.O_CREAT and name not in self._entries(number):
                self._new(place, None)
            self._files[descriptor] = self._entries(number)[name] if name else number
        return descriptor

    def on_write(self, descriptor: int, data: Any) -> int:
        count: int = self._real["write"](descriptor, data)
        if descriptor in self._files:
            node = self._files[descriptor]
            self._add(Call("bytes", node, len(self.live[node].data), bytes(memoryview(data)[:count])))
        return count

    def on_fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        if descriptor in self._files:
            self._add(Call("sync", self._files[descriptor]))

    def on_close(self, descriptor: int) -> None:
        self._files.pop(descriptor, None)
        self._real["close"](descriptor)

    def on_mkdir(self, path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> None:
        self._real["mkdir"](path, *rest, dir_fd=dir_fd, **more)
        if (place := self._place(path, dir_fd)) is not None:
            self._new(place, {})

    def on_rename(self, source: Any, target: Any, **more: Any) -> None:
        self._real["rename"](source, target, **more)
        old, new = self._place(source), self._place(target)
        if old is not None and new is not None:
            assert old[0] == new[0], "a rename within one directory is one change of its names"
            moved = self._entries(old[0])[old[1]]
            self._add(Call("names", old[0], removes=(old[1],), adds=((new[1], moved),)))

    def on_remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        is_directory = place is not None and self.live[self._entries(place[0])[place[1]]].entries is not None
        self._real["rmdir" if is_directory else "unlink"](path, dir_fd=dir_fd)
        if place is not None:
            self._add(Call("names", place[0], removes=(place[1],)))

    def after_crash(self, count: int, kept: set[int], torn: set[int], *, synced: bool = True) -> Tree:
        """What is on the disk after a crash behind the first `count` calls.

        Of the calls that were not synced those in `kept` have arrived, and half of those in `torn`. Without
        `synced` no sync has had an effect.
        """
        tree = {number: node.copy() for number, node in self.before.items()}
        durable = self.durable(count) if synced else set()
        for index, call in enumerate(self.calls[:count]):
            if index in durable or index in kept or index in torn:
                call.apply(tree, half=index in torn and index not in durable)
        return tree

    def durable(self, count: int) -> set[int]:
        """Numbers of the calls that a later sync, within the first `count` calls, has made durable."""
        syncs: dict[int, int] = {}
        found = set()
        for index in reversed(range(count)):
            call = self.calls[index]
            if call.kind == "sync":
                syncs.setdefault(call.node, index)
            elif call.node in syncs:
                found.add(index)
        return found


def write_tree(tree: Tree, target: Path, number: int = ROOT) -> None:
    """Write a tree into a directory that does not exist."""
    node = tree[number]
    if node.entries is None:
        target.write_bytes(bytes(node.data))
        return
    target.mkdir()
    for name, child in node.entries.items():
        write_tree(tree, target / name, child)


def recorded(directory: Path) -> Recorder:
    """The calls of saving step 3 in a directory with steps 1 and 2; the oldest is pruned."""
    store = Store(directory)
    for step in (1, 2):
        _put(store, step)
    recorder = Recorder(directory)
    with recorder.watched():
        _put(store, 3)
    return recorder


def _put(store: Store, step: int) -> None:
    store.save(snapshot(step))


def power_lost(bed: Bed) -> Outcome:
    """Each prefix of the calls, each with several combinations of what was not synced."""
    recorder = recorded(bed.place / "saved")
    committed = next(i for i, call in enumerate(recorder.calls) if any(n == "step-00000003" for n, _ in call.adds))
    points, wrong, found = 0, [], {2: 0, 3: 0}
    for count in range(len(recorder.calls) + 1):
        for kept, torn in _subsets(recorder, count, bed.draw):
            points += 1
            step = _loaded(recorder.after_crash(count, kept, torn), bed.place / "crashed")
            least = 3 if committed in recorder.durable(count) else 2
            if step is None or step < least:
                wrong.append(f"call {count}, kept {sorted(kept)}, torn {sorted(torn)}: {step}")
            else:
                found[step] += 1
    lazy = _without_syncs(recorder, bed)
    proof = f"{len(recorder.calls)} calls of a save; without any sync {lazy} points lose a committed step"
    seen = f"step 2 was loaded at {found[2]} points, step 3 at {found[3]}, {wrong[0] if wrong else 'always whole'}"
    return Outcome(not wrong and lazy > 0 and min(found.values()) > 0, proof, seen, points=points)


def _subsets(recorder: Recorder, count: int, draw: random.Random) -> Iterator[tuple[set[int], set[int]]]:
    """Combinations of the calls that were not synced: those that arrived, and those of which half did."""
    durable = recorder.durable(count)
    loose = [index for index in range(count) if index not in durable and recorder.calls[index].kind != "sync"]
    yield set(), set()
    if not loose:
        return
    yield set(loose), set()
    for _ in range(SUBSETS):
        kept = {index for index in loose if draw.random() < 0.5}
        yield kept, {index for index in kept if recorder.calls[index].kind == "bytes" and draw.random() < 0.5}


def _without_syncs(recorder: Recorder, bed: Bed) -> int:
    """Points after the commit at which step 3 would be lost if no sync had an effect: the table's own control."""
    lost = 0
    for count in range(len(recorder.calls) // 2, len(recorder.calls) + 1):
        kept = {index for index in range(count) if bed.draw.random() < 0.5}
        lost += _loaded(recorder.after_crash(count, kept, set(), synced=False), bed.place / "crashed") != 3
    return lost


def _loaded(tree: Tree, target: Path) -> int | None:
    """The step that a reader and a new job find, None if they find none or if its values are not its own."""
    shutil.rmtree(target, ignore_errors=True)
    write_tree(tree, target)
    seen, kept = newest(target), Store(target, log=lambda line: None).latest()
    if seen is None or kept is None or seen.step != kept.step:
        return None
    try:
        assert_holds(kept, kept.step)
    except AssertionError:
        return None
    return kept.step
