"""A split's tokens as shards of bounded size: a writer and a random-access reader."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from training.data.index import FileEntry, Split, digest_of

# 256 MiB of uint16: few files for a large corpus, quick to copy and to check one by one.
SHARD_TOKENS = 1 << 27
_BLOCK = 1 << 20


def token_dtype(vocabulary: int) -> str:
    """Return the little-endian type of the token files for ids below `vocabulary`."""
    return "<u2" if vocabulary <= 1 << 16 else "<u4"


class SplitWriter:
    """Appends documents to a split's token stream, shard by shard. Raises OSError.

    `checkpoint` returns its state; with `resume` a new writer continues from there and writes the same bytes.
    """

    def __init__(self, directory: Path, split: str, dtype: str, vocabulary: int) -> None:
        self._directory, self._split, self._dtype = directory, split, np.dtype(dtype)
        self._shard_tokens = SHARD_TOKENS
        self._stream: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._shards: list[int] = []
        self._starts: list[npt.NDArray[np.uint64]] = []
        self._starts_kept, self._starts_name = 0, f"{split}-starts.partial"
        self._documents = self._bytes = self._tokens = 0
        self.token_counts = np.zeros(vocabulary, dtype=np.int64)
        self.files: dict[str, FileEntry] = {}

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def append(self, lengths: Sequence[int], tokens: npt.NDArray[Any], size: int) -> None:
        """Append documents of these lengths in tokens (bos and eos included), in all `size` bytes of text."""
        counts = np.array(lengths, dtype=np.uint64)
        self._starts.append(np.uint64(self._tokens) + np.cumsum(counts) - counts)
        tokens = tokens.astype(self._dtype, copy=False)
        self.token_counts += np.bincount(tokens, minlength=len(self.token_counts))
        self._documents += len(lengths)
        self._bytes += size
        self._tokens += len(tokens)
        while len(tokens):
            tokens = tokens[self._write(tokens) :]

    def checkpoint(self) -> dict[str, Any]:
        """Flush everything to disk, and return what `resume` needs."""
        with (self._directory / self._starts_name).open("ab") as stream:
            for starts in self._starts[self._starts_kept :]:
                stream.write(starts.astype("<u8").tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        self._starts_kept = len(self._starts)
        if self._stream is not None:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        return {
            "shards": self._shards,
            "open": self._digest.hexdigest() if self._stream is not None else None,
            "files": {name: asdict(entry) for name, entry in self.files.items()},
            "documents": self._documents,
            "bytes": self._bytes,
            "tokens": self._tokens,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue after a `checkpoint`: check the bytes before it, and cut off later ones.

        Raises ValueError if the files have changed.
        """
        self._shards, self._documents = list(saved["shards"]), saved["documents"]
        self._bytes, self._tokens = saved["bytes"], saved["tokens"]
        self.files = {name: FileEntry(**entry) for name, entry in saved["files"].items()}
        path = self._directory / self._starts_name
        _cut_to(path, self._documents * 8)
        self._starts = [np.fromfile(path, "<u8")]
        self._starts_kept = 1
        for number, count in enumerate(self._shards):
            name = self._shard_name(number)
            last = number == len(self._shards) - 1 and saved["open"] is not None
            _cut_to(self._directory / name, count * self._dtype.itemsize)
            digest = self._count(self._directory / name)
            if digest.hexdigest() != (saved["open"] if last else self.files[name].sha256):
                raise ValueError(f"{name} has changed")
            if last:
                self._digest = digest
                self._stream = (self._directory / name).open("ab")
        if len(self._starts[0]) != self._documents or sum(self._shards) != self._tokens:
            raise ValueError(f"{self._split} has changed")

    def _count(self, path: Path) -> Any:
        """Count the tokens of an existing shard; return its running digest."""
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
                tokens = np.frombuffer(block, self._dtype)
                self.token_counts += np.bincount(tokens, minlength=len(self.token_counts))
        return digest

    def _write(self, tokens: npt.NDArray[Any]) -> int:
        """Write as many tokens as fit into the open shard, and return their number."""
        if self._stream is None:
            self._stream = (self._directory / self._shard_name(len(self._shards))).open("wb")
            self._digest = hashlib.sha256()
            self._shards.append(0)
        fitting = tokens[: self._shard_tokens - self._shards[-1]].tobytes()
        self._stream.write(fitting)
        self._digest.update(fitting)
        count = len(fitting) // self._dtype.itemsize
        self._shards[-1] += count
        if self._shards[-1] == self._shard_tokens:
            self._close_shard()
        return count

    def _close_shard(self) -> None:
        if self._stream is None:
            return
        self._stream.close()
        self._stream = None
        name = self._shard_name(len(self._shards) - 1)
        size = self._shards[-1] * self._dtype.itemsize
        self.files[name] = FileEntry(size=size, sha256=self._digest.hexdigest())

    def _shard_name(self, number: int) -> str:
        return f"{self._split}-{number:05d}.bin"

    def finish(self) -> Split:
        """Close the open shard, write the documents' starts, and return the split's description."""
        self._close_shard()
        starts = f"{self._split}-starts.npy"
        np.save(self._directory / starts, np.concatenate(self._starts).astype("<u8"))
        self.files[starts] = entry_of(self._directory / starts)
        (self._directory / self._starts_name).unlink(missing_ok=True)
        names = [self._shard_name(number) for number in range(len(self._shards))]
        return Split(self._documents, self._bytes, self._tokens, names, self._shards, starts)


class TokenShards:
    """A split's token stream with random access. Its files are memory-mapped. Raises OSError, ValueError."""

    def __init__(self, directory: Path, split: Split, dtype: str) -> None:
        self._shards = [np.memmap(directory / name, dtype, "r") for name in split.shards]
        self._ends = np.cumsum(split.shard_tokens)

    def read(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the tokens [start, start + count) of the split, from one or more shards."""
        result = np.empty(count, dtype=np.int64)
        shard = int(np.searchsorted(self._ends, start, side="right"))
        filled = 0
        while filled < count:
            offset = start + filled - (int(self._ends[shard]) - len(self._shards[shard]))
            part = self._shards[shard][offset : offset + count - filled]
            result[filled : filled + len(part)] = part
            filled += len(part)
            shard += 1
        return result


def _cut_to(path: Path, size: int) -> None:
    """Truncate a file to `size` bytes; ValueError if it is shorter."""
    if path.stat().st_size < size:
        raise ValueError(f"{path.name} is shorter than before")
    os.truncate(path, size)


def entry_of(path: Path) -> FileEntry:
    """Return the index entry of a complete file."""
    return FileEntry(size=path.stat().st_size, sha256=digest_of(path))
