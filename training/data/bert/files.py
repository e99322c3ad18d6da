"""Flat files of numbers beside a dataset's token shards: appended to, then read with random access."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.index import FileEntry


class FlatWriter:
    """Appends numbers of one type to a new file. Raises OSError."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._stream = path.open("wb")
        self._digest, self._size = hashlib.sha256(), 0
        self.name = path.name

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append an array of any shape, in C order."""
        data = np.ascontiguousarray(values, dtype=self._dtype).tobytes()
        self._stream.write(data)
        self._digest.update(data)
        self._size += len(data)

    @property
    def count(self) -> int:
        """Number of appended values."""
        return self._size // self._dtype.itemsize

    def close(self) -> None:
        self._stream.close()

    def entry(self) -> FileEntry:
        """Close the file; return its entry for the index."""
        self.close()
        return FileEntry(self._size, self._digest.hexdigest())


def read_flat(path: Path, dtype: str, columns: int = 0) -> npt.NDArray[Any]:
    """Memory-map a flat file, as rows of `columns` numbers if that is given."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty((0, columns) if columns else 0, dtype=dtype)
    values = np.asarray(np.memmap(path, dtype, "r"))
    return values.reshape(-1, columns) if columns else values
