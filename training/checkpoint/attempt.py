"""The temporary directory of one save: locked while its writer lives, committed by one rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import Callable

from training.checkpoint.disk import HashedFile, sync_directory, write_all
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.layout import (
    BAD,
    DELETING,
    LATEST,
    MANIFEST,
    SIGNATURE,
    TEMPORARY,
    step_name,
    step_of,
)

Log = Callable[[str], None]

REFUSED = "failed verification or was set aside, kept as evidence"
UNFINISHED = "not finished, because its writer died; the next start or copy removes it"
_NO_WRITER = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})


class Attempt:
    """One writer's temporary directory for one step (rank 0 only).

    The manifest's file is created first, empty and locked (flock), and filled last. The lock shows every
    machine that sees the file system's locks whether the writer lives or was killed.
    """

    def __init__(self, root: Path, step: int, identity: str, manifest: int) -> None:
        self.root, self.step, self.identity = root, step, identity
        self.path = root / f"{step_name(step)}.{identity}{TEMPORARY}"
        self._manifest = manifest

    @classmethod
    def begin(cls, root: Path, step: int) -> Attempt:
        """Create the directory under a new name, and lock it."""
        while True:
            identity = secrets.token_hex(6)
            path = root / f"{step_name(step)}.{identity}{TEMPORARY}"
            with naming(path):
                os.mkdir(path)
                try:
                    return cls(root, step, identity, _locked_manifest(path / MANIFEST))
                except (FileNotFoundError, BlockingIOError):
                    continue  # another store's clean-up removed the directory before it was locked

    def commit(self, manifest: bytes, signature: bytes | None) -> Path:
        """Write the manifest and rename the directory to its step; CheckpointError if that exists."""
        final = self.root / step_name(self.step)
        if signature is not None:
            with HashedFile(self.path / SIGNATURE) as file:
                file.write(signature)
        with naming(self.path / MANIFEST):
            write_all(self._manifest, manifest)
            os.fsync(self._manifest)
        sync_directory(self.path)
        try:
            with naming(self.path):
                os.rename(self.path, final)
        except CheckpointError as error:
            if final.exists():
                raise CheckpointError(f"{final.name}: another writer committed it meanwhile") from error
            raise
        sync_directory(self.root)
        return final

    def close(self) -> None:
        """Release the lock; remove the directory if it was not committed."""
        with naming(self.path):
            try:
                if self.path.exists():
                    discard(self.path)
            finally:
                os.close(self._manifest)


def _locked_manifest(path: Path) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor)
        os.stat(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int) -> bool:
    """Take the lock; BlockingIOError if another process holds it, False on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def discard(directory: Path) -> None:
    """Remove a directory. It is renamed first, so that a half-removed one never looks complete."""
    doomed = directory.with_name(f"{stem_of(directory.name)}.{secrets.token_hex(6)}{DELETING}")
    with naming(directory):
        os.rename(directory, doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    """Remove a directory with its content, or a link or a file that has a directory's name; never raises."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def stem_of(name: str) -> str:
    """The `step-…` part of a directory's name."""
    return name.split(".", 1)[0]


def quarantine(directory: Path) -> Path:
    """Move a refused checkpoint aside, as evidence; return its new path."""
    bad = directory.with_name(directory.name + BAD)
    if os.path.lexists(bad):
        bad = directory.with_name(f"{directory.name}.{secrets.token_hex(6)}{BAD}")
    with naming(directory):
        os.rename(directory, bad)
    return bad


def point_latest(root: Path, step: int, identity: str) -> None:
    """Write `step` to LATEST, atomically."""
    temporary = root / f"{LATEST}.{identity}{TEMPORARY}"
    with naming(temporary):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, f"{step_name(step)}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, root / LATEST)
    sync_directory(root)


def why_other(entry: os.DirEntry[str]) -> str:
    """Why a name with a step in it is not a committed step; empty if it is one, or has no step."""
    if step_of(stem_of(entry.name)) is None or entry.name.endswith(DELETING):
        return ""
    if entry.name.endswith(BAD):
        return REFUSED
    if not entry.name.endswith(TEMPORARY):
        real = entry.is_dir(follow_symlinks=False) or step_of(entry.name) is None
        return "" if real else "a link or a file, which is not read; move the directory itself here"
    try:
        descriptor = os.open(Path(entry.path, MANIFEST), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return UNFINISHED
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "being written"
    except OSError:
        return "being written, or not finished: there are no file locks here"
    finally:
        os.close(descriptor)
    return UNFINISHED


def clean_up(root: Path, log: Log) -> None:
    """Remove leftovers of dead writers and interrupted deletions, but nothing that a live writer uses."""
    for path in sorted(root.iterdir()):
        of_step = step_of(stem_of(path.name)) is not None
        temporary = path.suffix == TEMPORARY
        if of_step and temporary and path.is_dir() and not path.is_symlink():
            _clean_attempt(path, log)
        elif (temporary and (of_step or path.name.startswith(LATEST))) or (of_step and path.suffix == DELETING):
            _remove(path)


def clean_step(root: Path, step: int, log: Log) -> None:
    """Remove what dead writers of one step have left."""
    for path in sorted(root.glob(f"{step_name(step)}.*{TEMPORARY}")):
        if path.is_dir() and not path.is_symlink():
            _clean_attempt(path, log)


def _clean_attempt(path: Path, log: Log) -> None:
    try:
        descriptor = os.open(path / MANIFEST, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        _remove_empty(path)
        return
    except OSError as error:
        if error.errno not in _NO_WRITER:
            raise
        discard(path)  # a link, a FIFO or a directory: no writer made it
        return
    try:
        dead = _lock(descriptor)
        if not dead:
            log(f"{path.name}: kept, because without file locks it is unknown whether its writer lives")
    except BlockingIOError:
        log(f"{path.name}: kept, because another process is writing it")
        dead = False
    try:
        if dead:
            log(f"{path.name}: removed, because its writer died before committing it")
            discard(path)
    finally:
        os.close(descriptor)


def _remove_empty(path: Path) -> None:
    """Remove a directory whose writer died right after creating it; a live writer makes another."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
