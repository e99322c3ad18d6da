"""Reads files that another user may have written: regular ones only, and never more than a given size."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path


def open_regular(path: Path, *, follow: bool = False) -> FileIO:
    """Open a regular file for reading, without waiting for a FIFO; a link only with `follow`.

    Raises:
        OSError: the system refuses, or the path is a link, a FIFO, a device or a directory.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:
        raise OSError(f"the name cannot be a file's: {error}") from None
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink() and not follow:
            raise OSError("a link, which is not followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return FileIO(descriptor, "rb")


def unlinked(path: str, flags: int) -> int:
    """An `opener` of `open` that follows no link at the end of the path: a file of another run may be behind it."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def read_bounded(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; OSError for any other."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        content = _all_of(file, limit + 1) if size <= limit else b""
    if max(size, len(content)) > limit:
        raise OSError(f"has {max(size, len(content)):,} bytes, more than {limit:,}")
    return content


def end_of(path: Path, most: int) -> str:
    """Return the last `most` bytes of a regular file as text; OSError for any other."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return _all_of(file, most).decode(errors="replace")


def _all_of(file: FileIO, most: int) -> bytes:
    """Return the file's bytes up to `most`; a network file system may return fewer for one read."""
    parts, left = [], most
    while left and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
