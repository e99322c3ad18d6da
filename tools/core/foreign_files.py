"""Writes files whose names come from outside: from a pod, a cluster, a manifest or an archive."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from tools.core.errors import UserError

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def is_plain(name: str) -> bool:
    """Return whether `name` is a relative path in its shortest form, without `..` and control characters."""
    path = PurePosixPath(name)
    parts = path.parts
    return bool(parts) and name.isprintable() and str(path) == name and not {"/", ".."} & {*parts}


@contextlib.contextmanager
def writing(target: Path, name: str, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open the file `name` below `target`. It replaces an older one when the block ends without an error.

    Missing directories are made. Raises UserError (1) for a name that is not plain, and where a directory
    below `target` is a symbolic link: nothing outside of `target` is touched.
    """
    if not is_plain(name):
        raise UserError(f"{name[:200]!r} is not a path below {target}", code=1)
    *parents, last = PurePosixPath(name).parts
    part = f".{last}.part"
    target.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        directory = _opened(opened, target)
        for parent in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, dir_fd=directory)
            try:
                directory = _opened(opened, parent, os.O_NOFOLLOW, directory)
            except NotADirectoryError:
                raise UserError(f"{target / name}: {parent} is a file or a symbolic link", code=1) from None
        _remove(part, directory)
        try:
            with os.fdopen(os.open(part, NEW_FILE, mode, dir_fd=directory), "wb") as file:
                yield file
            os.replace(part, last, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as problem:
            if problem.filename is not None:  # a full disk has none
                problem.filename, problem.filename2 = str(target / name), None
            raise
        finally:
            _remove(part, directory)


def _opened(stack: contextlib.ExitStack, name: str | Path, flags: int = 0, below: int | None = None) -> int:
    descriptor = os.open(name, DIRECTORY | flags, dir_fd=below)
    stack.callback(os.close, descriptor)
    return descriptor


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
