"""Directories that appear whole or not at all, however the process that makes them ends.

A directory is made as `.<name>.<random>.preparing` beside its final place and renamed when complete. Its
maker holds an advisory lock on it; the kernel drops the lock with the process, so an unlocked one is a dead
leftover. One that holds a journal of what is done in it can be taken up by the next maker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

JOURNAL = "journal.json"
_SUFFIX = ".preparing"
_ATTEMPTS = 20
# On a file system without such locks a leftover is told from live work by its age only.
_UNLOCKABLE_AGE_S = 24 * 3600
_RESUMABLE_AGE_S = 7 * 24 * 3600


@contextlib.contextmanager
def staging(root: Path, name: str, adopt: bool = False) -> Iterator[Path]:
    """Make a locked directory under `root` in which `name` can be built; remove it if it is not committed.

    With `adopt` a dead maker's directory for the same name is taken up where there is one with a journal, and
    Ctrl-C leaves such a one behind. Removes other leftovers of dead makers first. Raises OSError.
    """
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    directory, descriptor = (_adopted(root, name) if adopt else None) or _make(root, name)
    try:
        yield directory
    except BaseException as error:
        if isinstance(error, Exception) or not (directory / JOURNAL).exists():
            shutil.rmtree(directory, ignore_errors=True)
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)


def _adopted(root: Path, name: str) -> tuple[Path, int] | None:
    """Lock and return a dead maker's directory for `name` that holds a journal."""
    for path in sorted(root.glob(f".{name}.*{_SUFFIX}")):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if (path / JOURNAL).exists() and _is_dead(path, descriptor) and _still_at(path, descriptor):
                return path, descriptor
            os.close(descriptor)
    return None


def commit(directory: Path, target: Path) -> bool:
    """Move a complete staging directory to `target`, durably; False when another one is there already."""
    for folder, _, names in os.walk(directory):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))
    try:
        os.rename(directory, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    _sync(target.parent)
    return True


def sweep(root: Path) -> None:
    """Remove the staging directories under `root` whose makers are dead and whose work nobody can take up."""
    for path in root.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # gone already, or not ours to remove
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if _is_dead(path, descriptor) and not _resumable(path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _resumable(path: Path) -> bool:
    """Whether a dead maker's work is still wanted: journaled, not too old, not done since."""
    with contextlib.suppress(FileNotFoundError):
        age = time.time() - (path / JOURNAL).stat().st_mtime
        name = path.name[1:].removesuffix(_SUFFIX).rpartition(".")[0]
        return age < _RESUMABLE_AGE_S and not (path.parent / name).exists()
    return False


def _make(root: Path, name: str) -> tuple[Path, int]:
    """Make and lock a new directory; again under another name if a sweep took it between the two."""
    for _ in range(_ATTEMPTS):
        path = root / f".{name}.{secrets.token_hex(4)}{_SUFFIX}"
        path.mkdir()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(descriptor) is not False and _still_at(path, descriptor):
                return path, descriptor
            os.close(descriptor)
    raise OSError(errno.EAGAIN, "new directories are being removed by someone else", str(root))


def _lock(descriptor: int) -> bool | None:
    """Return True when the lock was taken, False when another holds it, None where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_dead(path: Path, descriptor: int) -> bool:
    locked = _lock(descriptor)
    if locked is None:
        return time.time() - path.stat().st_mtime > _UNLOCKABLE_AGE_S
    return locked


def _still_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
