"""Brings the items of a source to a directory, which appears when it is complete.

Beside the target, `.<name>.<random>.preparing` holds parts of items that are being fetched (`parts/`), what
is complete (`files/`) and which items those are (`done.jsonl`). A later process continues there: complete
items are not fetched again, and a part continues at its end. `files/` is renamed to the target at last, with
the manifest `.staged.json` in it: source, and size and SHA-256 of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from training.data.errors import DataError, reason
from training.data.journal import Journal
from training.data.retries import Stopped
from training.data.staging import commit, staging
from training.run.files import read_bounded
from training.stage.item import Body, Item, Say, placing
from training.stage.progress import Progress
from training.stage.unpack import is_packed, unpack

MANIFEST = ".staged.json"
_LARGEST_MANIFEST = 1 << 30
_CHUNK = 1 << 20
_SYNC_S = 2.0  # seconds of fetched bytes that a crash of the machine may lose
_EVERY = 1.0
_PARTS, _FILES, _DONE = "parts", "files", "done.jsonl"


@dataclass(frozen=True)
class Arrival:
    """What is at the target: number and bytes of the files, a digest of the manifest's list of files, and the
    bytes that this process fetched.
    """

    source: str
    files: int
    bytes: int
    digest: str
    fetched: int


@dataclass(frozen=True)
class Order:
    """What is wanted: the source with its exact revision, whether archives stay packed, and whether other
    content of the target is replaced. `at_once` items are fetched in parallel; `want` is called before with
    the items that are missing, and the byte from which on.
    """

    source: str
    packed: bool = False
    replace: bool = False
    at_once: int = 4
    want: Callable[[list[tuple[Item, int]]], None] = lambda needs: None


def arrive(order: Order, items: list[Item], target: Path, say: Say, stop: threading.Event) -> Arrival:
    """Bring the items to the directory `target`, and return what is there.

    Raises DataError for what another attempt cannot change, GaveUp for a source that does not answer, and
    OSError.
    """
    identity = [order.source, order.packed, *(item.identity for item in items)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    if (there := _already(target, digest)) is not None:
        return there
    if not order.replace and target.exists() and any(target.iterdir()):
        raise DataError(f"{target.name} exists with other content: replace it (--replace), or name another")
    with staging(target.parent, target.name, adopt=True, keep=True) as directory:
        journal = Journal(directory)
        if journal.saved.get("identity") != digest:
            journal.forget()
            journal.write({"identity": digest})
        work = _Work(order, items, directory, say, stop)
        work.run()
        files = work.complete()
        total = sum(size for size, _ in files.values())
        arrival = Arrival(order.source, len(files), total, _digest_of(files), work.fetched)
        _write_manifest(directory / _FILES, digest, arrival, files)
        _move(directory / _FILES, target, order.replace)
    return arrival


def _already(target: Path, identity: str) -> Arrival | None:
    """Return what an earlier process brought from the same source, if its files still have their sizes."""
    try:
        saved = json.loads(read_bounded(target / MANIFEST, _LARGEST_MANIFEST))
        if saved["identity"] != identity:
            return None
        sizes = {name: entry["size"] for name, entry in saved["files"].items()}
        if all((target / name).stat().st_size == size for name, size in sizes.items()):
            return Arrival(**saved["arrival"] | {"fetched": 0})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _digest_of(files: dict[str, tuple[int, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def _write_manifest(directory: Path, identity: str, arrival: Arrival, files: dict[str, tuple[int, str]]) -> None:
    entries = {name: {"size": size, "sha256": sha256} for name, (size, sha256) in sorted(files.items())}
    content = {"identity": identity, "arrival": asdict(arrival), "time": time.time(), "files": entries}
    (directory / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _move(directory: Path, target: Path, replace: bool) -> None:
    """Rename the complete directory to its place; what is replaced goes last."""
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.replaced")
    if replace and target.exists():
        os.rename(target, old)
    if not commit(directory, target):
        raise DataError(f"{target.name} was made by another process meanwhile")
    for path in target.parent.glob(f".{target.name}.*.replaced"):
        shutil.rmtree(path, ignore_errors=True)


class _Work:
    """The items that are not here yet, and the threads that bring them."""

    def __init__(self, order: Order, items: list[Item], directory: Path, say: Say, stop: threading.Event) -> None:
        self._order, self._items, self._directory, self._say, self._stop = order, items, directory, say, stop
        self._lock = threading.Lock()
        for name in (_PARTS, _FILES):
            (directory / name).mkdir(exist_ok=True)
        self._done = dict(_entries(directory / _DONE))
        self._names = {name for files in self._done.values() for name in files}
        here = sum(item.size for item in items if item.name in self._done)
        here += sum(_offset(self._part(number)) for number, _ in self._left())
        self._progress = Progress(sum(item.size for item in items), here, len(items), len(self._done))
        if here:
            say(f"continuing: {here / 2**20:,.1f} MiB are here")

    @property
    def fetched(self) -> int:
        return self._progress.fetched

    def run(self) -> None:
        """Bring what is not here. Raises DataError, OSError."""
        self._check_room()
        self._order.want([(item, _offset(self._part(number))) for number, item in self._left()])
        with ThreadPoolExecutor(self._order.at_once) as pool:
            futures = [pool.submit(self._bring, number, item) for number, item in self._left()]
            try:
                self._wait(set(futures))
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _wait(self, left: set[Future[None]]) -> None:
        while left:
            finished, left = wait(left, timeout=_EVERY, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
            self._progress.report(self._say)

    def complete(self) -> dict[str, tuple[int, str]]:
        """Return size and SHA-256 of all files by name."""
        return {name: entry for item in self._items for name, entry in self._done[item.name].items()}

    def _left(self) -> list[tuple[int, Item]]:
        return [(number, item) for number, item in enumerate(self._items) if item.name not in self._done]

    def _part(self, number: int) -> Path:
        return self._directory / _PARTS / f"{number:07d}"

    def _check_room(self) -> None:
        """Refuse what cannot fit: all missing bytes, and archives a second time, as their content."""
        left = self._left()
        need = sum(item.size - _offset(self._part(number)) for number, item in left)
        need += max((item.size for _, item in left if self._is_packed(item)), default=0)
        free = _free(self._directory)
        if need > free:
            raise DataError(
                f"the volume has {free / 2**20:,.1f} MiB free, and {self._order.source} needs at least "
                f"{need / 2**20:,.1f} MiB more"
            )

    def _is_packed(self, item: Item) -> bool:
        return not self._order.packed and is_packed(item.name)

    def _bring(self, number: int, item: Item) -> None:
        part = self._part(number)
        sha256 = self._fetch(item, part)
        into = self._directory / _FILES
        if self._is_packed(item):
            with self._lock:  # one at a time: they share the volume's free bytes
                self._progress.phase = f"unpacking {item.name}"
                files = unpack(part, item.name, into, lambda: _free(into), self._taken, self._stop)
                self._progress.phase = ""
                self._record(item, files)
            _remove(part)
            return
        size = part.stat().st_size
        with self._lock:
            if self._taken(item.name):
                raise DataError(f"{item.name}: an archive of {self._order.source} has this file too")
            with placing(item.name, self._order.source):
                (into / item.name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(part, into / item.name)
            self._record(item, {item.name: (size, sha256)})
        _remove(part)

    def _taken(self, name: str) -> bool:
        return name in self._names

    def _record(self, item: Item, files: dict[str, tuple[int, str]]) -> None:
        self._done[item.name] = files
        self._names |= files.keys()
        with (self._directory / _DONE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([item.name, files]) + "\n")
        self._progress.files += 1

    def _fetch(self, item: Item, part: Path) -> str:
        """Write the item's missing bytes behind those of its part, and return the SHA-256 of all."""
        offset = _offset(part)
        found = hashlib.sha256()
        with part.open("r+b" if part.exists() else "w+b") as out:
            for chunk in _chunks(out, offset):
                found.update(chunk)
            out.truncate()
            with contextlib.closing(item.open(offset, self._stop)) as body:
                try:
                    self._pour(item, body, out, part, found)
                except BaseException:
                    with contextlib.suppress(OSError):  # a full disk: its error is on its way
                        _sync(out, part)
                    raise
            _sync(out, part)
        published = getattr(body, "sha256", None) or item.sha256
        if published not in (None, found.hexdigest()):
            _remove(part)
            raise DataError(f"{item.name}: SHA-256 is {found.hexdigest()}, but the source says {published}")
        return found.hexdigest()

    def _pour(self, item: Item, body: Body, out: IO[bytes], part: Path, found: Any) -> None:
        """Write what is missing to `out`. Raises DataError if the body is too short."""
        synced = time.monotonic()
        while (offset := out.tell()) < item.size:
            chunk = body.read(min(_CHUNK, item.size - offset))
            if not chunk:
                raise DataError(f"{item.name} ended after {offset:,} of {item.size:,} bytes")
            out.write(chunk)
            found.update(chunk)
            self._progress.more(len(chunk))
            if self._stop.is_set():
                raise Stopped
            if time.monotonic() - synced > _SYNC_S:
                _sync(out, part)
                synced = time.monotonic()


def _mark(part: Path) -> Path:
    """The file that says how many bytes of a part are certainly on the disk."""
    return part.with_suffix(".size")


def _remove(part: Path) -> None:
    part.unlink(missing_ok=True)
    _mark(part).unlink(missing_ok=True)


def _sync(out: IO[bytes], part: Path) -> None:
    out.flush()
    os.fsync(out.fileno())
    _mark(part).write_text(str(out.tell()), encoding="ascii")


def _offset(part: Path) -> int:
    """Return how many bytes of a part are here."""
    with contextlib.suppress(OSError, ValueError):
        return min(int(_mark(part).read_text(encoding="ascii")), part.stat().st_size)
    return 0


def _chunks(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(_CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _entries(path: Path) -> Iterator[tuple[str, dict[str, tuple[int, str]]]]:
    """Yield the items that are complete, with their files. A torn last line does not count."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            name, files = json.loads(line)
        except ValueError:
            continue
        yield name, {file: (size, sha256) for file, (size, sha256) in files.items()}


def _free(directory: Path) -> int:
    """Return the free bytes of the file system."""
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        raise DataError(f"{directory}: {reason(error)}") from None
    return disk.f_bavail * disk.f_frsize
