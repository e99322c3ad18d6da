"""Unpacks archives that come from outside: only regular files and directories, all below one directory.

It refuses paths that lead elsewhere, links, devices, encrypted members, and archives that unpack to many
times their size.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from training.data.errors import DataError, reason
from training.data.readers import JSON_LINES_GZIP
from training.data.retries import Stopped
from training.stage.item import placing, safe_name

# An archive may hold this many bytes whatever its own size, and this many times its size.
MOST_UNPACKED, MOST_RATIO = 1 << 28, 200
MOST_MEMBERS = 10_000_000
_CHUNK = 1 << 20
_TAR = {
    ".tar": "", ".tar.gz": "gz", ".tgz": "gz", ".tar.zst": "zst", ".tzst": "zst", ".tar.bz2": "bz2",
    ".tar.xz": "xz", ".txz": "xz",
}  # fmt: skip
_ONE = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
_OPENERS: dict[str, Any] = {"": open, "gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW

Files = dict[str, tuple[int, str]]


def is_packed(name: str) -> bool:
    """Return whether a file of this name is unpacked. The trainer reads packed JSON lines as they are."""
    lower = name.lower()
    return not lower.endswith(JSON_LINES_GZIP) and lower.endswith((*_TAR, *_ONE, ".zip"))


def unpack(
    path: Path,
    name: str,
    into: Path,
    free: Callable[[], int],
    taken: Callable[[str], bool],
    stop: threading.Event,
) -> Files:
    """Unpack the archive at `path`, whose own name is `name`, into its directory below `into`.

    `taken` tells which files belong to something else. Returns size and SHA-256 of each file by name. Raises
    DataError for an archive that is damaged or refused.
    """
    writer = _Writer(name, into, path.stat().st_size, free, taken, stop)
    lower = name.lower()
    try:
        if lower.endswith(".zip"):
            _unzip(path, writer)
        elif (suffix := _suffix(lower, _TAR)) is not None:
            with _opened(path, _TAR[suffix], writer) as stream:
                _untar(stream, writer)
        else:
            suffix = _suffix(lower, _ONE) or ""
            with _opened(path, _ONE[suffix], writer) as stream:
                writer.write(PurePosixPath(name).name[: -len(suffix)], stream, None)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{name}: damaged archive ({error})") from None
    except (NotImplementedError, RuntimeError) as error:  # zipfile: a compression or encryption it lacks
        raise DataError(f"{name}: {error}") from None
    if not writer.files:
        raise DataError(f"{name}: the archive holds no file")
    return writer.files


def _suffix(name: str, table: dict[str, str]) -> str | None:
    return max((suffix for suffix in table if name.endswith(suffix)), key=len, default=None)


class _Writer:
    """Writes members below a directory, within the limits of the archive."""

    def __init__(
        self,
        archive: str,
        into: Path,
        size: int,
        free: Callable[[], int],
        taken: Callable[[str], bool],
        stop: threading.Event,
    ) -> None:
        self.archive, self._into, self._free, self._taken, self._stop = archive, into, free, taken, stop
        self._most = max(MOST_UNPACKED, MOST_RATIO * size)
        self._spent = {"read": 0, "written": 0}
        self._members = 0
        self.files: Files = {}

    def spend(self, what: str, count: int) -> None:
        """Count unpacked bytes. Raises DataError when the archive unpacks to too many."""
        self._spent[what] += count
        if self._spent[what] > self._most:
            raise DataError(
                f"{self.archive}: refused, because it unpacks to more than {self._most:,} bytes, "
                f"{MOST_RATIO} times its size"
            )
        if self._stop.is_set():
            raise Stopped

    def place(self, name: str) -> str:
        """Return a member's path below the directory. Raises DataError."""
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise DataError(f"{self.archive}: refused, because it has more than {MOST_MEMBERS:,} members")
        parent = PurePosixPath(self.archive).parent
        return safe_name((parent / safe_name(name, self.archive)).as_posix(), self.archive)

    def directory(self, name: str) -> None:
        where = self.place(name)
        with placing(where, self.archive):
            (self._into / where).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, stream: IO[bytes], size: int | None) -> None:
        """Write one member of `size` bytes (None: unknown)."""
        where = self.place(name)
        if self._taken(where):
            raise DataError(f"{self.archive}: {where} is there from another part of the source")
        if size is not None and size > (free := self._free()):
            raise DataError(
                f"{self.archive}: {where} has {size / 2**20:,.1f} MiB, and the volume has {free / 2**20:,.1f} MiB"
            )
        target = self._into / where
        found, written = hashlib.sha256(), 0
        try:
            with placing(where, self.archive):
                target.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(target, _NEW, 0o644)
            with os.fdopen(descriptor, "wb") as out:
                while chunk := stream.read(_CHUNK):
                    self.spend("written", len(chunk))
                    found.update(chunk)
                    out.write(chunk)
                    written += len(chunk)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            if isinstance(error, gzip.BadGzipFile) or error.errno is None:
                raise DataError(f"{self.archive}: damaged archive ({error})") from None
            raise DataError(f"{self.archive}: {where} cannot be written: {reason(error)}") from None
        if size not in (None, written):
            raise DataError(f"{self.archive}: {where} has {written:,} of {size:,} bytes")
        self.files[where] = (written, found.hexdigest())


def _untar(stream: IO[bytes], writer: _Writer) -> None:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            where = f"{writer.archive}: {member.name[:200]!r}"
            if member.isdir():
                if PurePosixPath(member.name).parts:
                    writer.directory(member.name)
                continue
            if not member.isreg() or member.issparse():
                raise DataError(f"{where} is refused: it is {_kind(member)}, not a regular file")
            safe_name(_without_dot(member.name), writer.archive)
            tarfile.data_filter(member, "/")
            content = archive.extractfile(member)
            assert content is not None
            writer.write(_without_dot(member.name), content, member.size)
            archive.members = []  # type: ignore[attr-defined]  # it would keep all


def _without_dot(name: str) -> str:
    return name.removeprefix("./")


def _kind(member: tarfile.TarInfo) -> str:
    kinds = {"a link": member.issym() or member.islnk(), "a sparse file": member.issparse()}
    return next((kind for kind, found in kinds.items() if found), "a device or a pipe")


def _unzip(path: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            where = f"{writer.archive}: {member.filename[:200]!r}"
            mode = member.external_attr >> 16
            if member.is_dir():
                writer.directory(member.filename)
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise DataError(f"{where} is refused: it is a link or a special file")
            if member.flag_bits & 1:
                raise DataError(f"{where} is refused: it is encrypted")
            with archive.open(member) as content:
                writer.write(member.filename, content, member.file_size)


def _opened(path: Path, packing: str, writer: _Writer) -> IO[bytes]:
    """Open a file and undo its packing; what comes out is counted."""
    plain: Any
    if packing == "zst":
        import pyarrow as pa

        plain = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
    else:
        plain = _OPENERS[packing](path, "rb")
    return cast(IO[bytes], io.BufferedReader(_Counted(plain, writer), _CHUNK))


class _Counted(io.RawIOBase):
    """An unpacked stream that counts what it gives."""

    def __init__(self, plain: Any, writer: _Writer) -> None:
        super().__init__()
        self._plain, self._writer = plain, writer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._plain.read(len(buffer))
        except OSError as error:  # pyarrow has no error of its own for damaged data
            raise DataError(f"{self._writer.archive}: damaged archive ({error})") from None
        self._writer.spend("read", len(data))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._plain.close()
        super().close()
