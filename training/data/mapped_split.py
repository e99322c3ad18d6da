"""The part that all opened splits of a prepared dataset have in common."""

from __future__ import annotations

from pathlib import Path

from training.data.index import Index
from training.data.token_shards import TokenShards


class MappedSplit:
    """One split of a dataset directory. Its files are memory-mapped. Raises OSError, ValueError."""

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        self.directory = directory
        self._index, self._split = index, index.splits[split]
        self._shards = TokenShards(directory, self._split, index.dtype)

    @property
    def digest(self) -> str:
        """Digest of the dataset's content; on resume a different digest means different data."""
        return self._index.digest

    @property
    def tokens(self) -> int:
        """Stored tokens of the split, including each document's bos and eos if it has them."""
        return self._split.tokens
