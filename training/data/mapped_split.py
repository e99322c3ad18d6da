"""What every opened split of a prepared dataset has."""

from __future__ import annotations

from pathlib import Path

from training.data.index import Index
from training.data.token_shards import TokenShards


class MappedSplit:
    """One split of a dataset directory; its files are mapped, not read. Raises OSError, ValueError."""

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        self.directory = directory
        self._index, self._split = index, index.splits[split]
        self._shards = TokenShards(directory, self._split, index.dtype)

    @property
    def digest(self) -> str:
        """Digest of the dataset's whole content: equal on resume, or the data is another."""
        return self._index.digest

    @property
    def tokens(self) -> int:
        """Tokens of the split as it is stored, each document's bos and eos included where it has them."""
        return self._split.tokens
