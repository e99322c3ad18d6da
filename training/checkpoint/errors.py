"""The checkpoint store's error, and how an operating system error becomes one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors of a network file system (an evicted Lustre client, a stale NFS handle) that a retry often fixes.
TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the message names the rank, file or tensor, and the reason."""

    failure_class = "storage"

    @property
    def transient(self) -> bool:
        """Whether it came from an operating system error that may go away."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno in TRANSIENT


class ForeignError(CheckpointError):
    """A checkpoint that was not signed with this job's key, or not as this run's."""


class UnusableError(CheckpointError):
    """A place that this process cannot use: no such bucket, no permission, no credentials."""


class UnreachableError(CheckpointError):
    """A bucket that did not answer, or not as it should."""


@contextmanager
def naming(path: Path, *, whole: bool = False) -> Iterator[None]:
    """Turn an OSError inside the block into a CheckpointError with `path`'s directory and file name, or all of it."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        shown = path if whole else f"{path.parent.name}/{path.name}"
        raise CheckpointError(f"{shown}: {reason}") from error
