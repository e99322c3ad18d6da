"""Directories that appear as a whole or not at all, however the process that creates them ends.

A directory is created as `.<name>.<random>.preparing` beside its final place and renamed when complete. Its
process holds an advisory lock on it. The kernel releases the lock when the process ends, so an unlocked
directory is a leftover. A leftover with a journal can be continued by the next process.
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
# On a file system without locks only the age tells a leftover from live work.
_UNLOCKABLE_AGE_S = 24 * 3600
_RESUMABLE_AGE_S = 7 * 24 * 3600


@contextlib.contextmanager
def staging(root: Path, name: str, adopt: bool = False, keep: bool = False) -> Iterator[Path]:
    """Create a locked directory under `root` in which `name` can be built; remove it if it is not committed.

    With `adopt`, a dead process's directory for the same name is reused if it has a journal, and Ctrl-C keeps
    such a directory; with `keep`, an error keeps it too. Other leftovers are removed first. Raises OSError.
    """
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    directory, descriptor = (_adopted(root, name) if adopt else None) or _make(root, name)
    try:
        yield directory
    except BaseException as error:
        if (isinstance(error, Exception) and not keep) or not (directory / JOURNAL).exists():
            shutil.rmtree(directory, ignore_errors=True)
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)


def _adopted(root: Path, name: str) -> tuple[Path, int] | None:
    """Lock and return a dead process's directory for `name` with a journal, if there is one."""
    for path in sorted(root.glob(f".{name}.*{_SUFFIX}")):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if (path / JOURNAL).exists() and _is_dead(path, descriptor) and _still_at(path, descriptor):
                return path, descriptor
            os.close(descriptor)
    return None


def commit(directory: Path, target: Path) -> bool:
    """Move a complete staging directory to `target`, durably; False if `target` exists already."""
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
    """Remove the staging directories under `root` whose processes are dead and that cannot be continued."""
    for path in root.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # already removed, or not ours
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if _is_dead(path, descriptor) and not _resumable(path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _resumable(path: Path) -> bool:
    """Whether a dead process's work can be continued: it has a journal, is recent, and was not done since."""
    with contextlib.suppress(FileNotFoundError):
        written = (path / JOURNAL).stat().st_mtime
        done = path.parent / path.name[1:].removesuffix(_SUFFIX).rpartition(".")[0]
        return time.time() - written < _RESUMABLE_AGE_S and not (done.exists() and done.stat().st_mtime >= written)
    return False


def _make(root: Path, name: str) -> tuple[Path, int]:
    """Create and lock a new directory; retry under another name if a sweep removed it in between."""
    for _ in range(_ATTEMPTS):
        path = root / f".{name}.{secrets.token_hex(4)}{_SUFFIX}"
        path.mkdir()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(descriptor) is not False and _still_at(path, descriptor):
                return path, descriptor
            os.close(descriptor)
    raise OSError(errno.EAGAIN, "another process keeps removing new directories", str(root))


def _lock(descriptor: int) -> bool | None:
    """Return True if the lock was taken, False if another process holds it, None without locks here."""
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
