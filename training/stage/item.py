"""One file of a source, whatever the source is, and the names that a file may have on a volume."""

from __future__ import annotations

import contextlib
import fnmatch
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from training.data.errors import DataError

Say = Callable[[str], None]
_LONGEST_PART, _LONGEST_NAME = 255, 1024  # bytes, of Linux's file systems and of an S3 key


class Body(Protocol):
    """The content of an item, from some byte on."""

    def read(self, size: int) -> bytes: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Item:
    """One file of a source.

    `name` is its path below the target, `size` in bytes. `version` tells its content from other content at
    the same place. `sha256` is the digest that the source publishes, if it does. `open` returns the bytes
    from an offset on; setting the event ends its waiting.
    """

    name: str
    size: int
    version: str
    open: Callable[[int, threading.Event], Body] = field(compare=False, repr=False)
    sha256: str | None = None

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.size, self.version]


def safe_name(name: str, where: str) -> str:
    """Return the path of a file below a directory. Raises DataError for one that could lead elsewhere."""
    path = PurePosixPath(name)
    parts = path.parts
    plain = bool(parts) and "/" not in parts and ".." not in parts and name.isprintable()
    if not plain or "\\" in name:
        raise DataError(f"{where}: the name {name[:200]!r} is not a plain path below a directory")
    if len(name.encode()) > _LONGEST_NAME or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise DataError(f"{where}: the name {name[:80]!r}... is too long")
    return path.as_posix()


@contextlib.contextmanager
def placing(name: str, where: str) -> Iterator[None]:
    """Raise DataError inside the block if a name of the path is a file in one place of the source and a directory in
    another: archives and buckets can hold both, a volume cannot.
    """
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        text = "the source has one name both as a file and as a directory; leave one out with --include"
        raise DataError(f"{where}: {name} cannot be written: {text}") from None


def is_hidden(name: str) -> bool:
    """Return whether a part of the path begins with a dot. The trainer does not read such files."""
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def chosen(names: Iterable[str], patterns: tuple[str, ...]) -> set[str]:
    """Return the names that match one of the patterns, or all names without patterns."""
    return {name for name in names if not patterns or any(fnmatch.fnmatchcase(name, p) for p in patterns)}
