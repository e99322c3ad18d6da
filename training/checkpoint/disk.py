"""Files that are hashed while they are written, and fsyncs that make files and their names durable."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from training.checkpoint.errors import CheckpointError, naming
from training.run.files import open_regular, read_bounded

CHUNK = 16 << 20  # bytes handed to one write or read call


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte of `data`, in chunks. Raises the system's OSError."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest[:CHUNK]) :]


class HashedFile:
    """A new file whose SHA-256 and size are computed from the bytes handed to the system.

    Its bytes are durable after the context, unless `durable` is false.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path, self._durable = path, durable
        self.size = 0
        self._hash = hashlib.sha256()
        with naming(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        """Make the bytes durable (after success only), and close the file."""
        with naming(self.path):
            try:
                if failure is None and self._durable:
                    os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`; CheckpointError with the file's name if the system refuses."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            with naming(self.path):
                write_all(self._descriptor, piece)
            self._hash.update(piece)
            self.size += len(piece)

    @property
    def digest(self) -> str:
        """SHA-256 of everything written so far, in hexadecimal."""
        return self._hash.hexdigest()


def sync_directory(path: Path) -> None:
    """Make the names inside the directory `path` durable."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(root: Path) -> dict[str, tuple[int, str]]:
    """Make all files below a directory durable; return size and SHA-256 of each by its path from there.

    Raises:
        CheckpointError: one is a link, a FIFO or the like, or has a name that is not UTF-8.
    """
    found: dict[str, tuple[int, str]] = {}
    for directory, names, files in os.walk(str(root), onerror=_refuse):
        for name in [*names, *files]:
            path = Path(directory, name)
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() or not relative.isprintable():
                raise CheckpointError(f"{root.name}/{relative!a}: only plain files and directories can be saved")
        for name in files:
            path = Path(directory, name)
            size, digest = file_size(path), file_digest(path)
            sync_file(path)
            found[path.relative_to(root).as_posix()] = size, digest
        sync_directory(Path(directory))
    return found


def _refuse(error: OSError) -> None:
    raise CheckpointError(f"{error.filename}: {error.strerror}") from error


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    with naming(path), path.open("rb") as file:
        os.fsync(file.fileno())


def file_size(path: Path) -> int:
    """Size in bytes of the regular file `path`; CheckpointError if it is missing or something else."""
    with naming(path):
        found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path.parent.name}/{path.name}: not a regular file")
    return found.st_size


def file_digest(path: Path) -> str:
    """SHA-256 of the bytes that the file has when it is opened, in hexadecimal; a link is refused."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with naming(path), open_regular(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left and (count := file.readinto(buffer[: min(left, CHUNK)])):
            digest.update(buffer[:count])
            left -= count
    return digest.hexdigest()


def exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """That many bytes, or fewer at the end; a network file system may return fewer for one read."""
    found = []
    while count and (piece := read(count)):
        found.append(piece)
        count -= len(piece)
    return b"".join(found)


def free_bytes(directory: Path) -> int:
    """Bytes that a user may still write to the file system of a directory."""
    with naming(directory):
        disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def read_file(path: Path, limit: int) -> bytes:
    """The content of a regular file; CheckpointError for a link, a FIFO, or more than `limit` bytes."""
    with naming(path):
        return read_bounded(path, limit)
