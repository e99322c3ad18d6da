"""A dataset's index.json, and checks of a dataset directory against it.

Beside the index a dataset directory holds the tokenizer in `tokenizer/` and, for each split, the token shards
(flat little-endian integers) and the documents' first positions in the split's token stream (`.npy`, uint64).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from training.data.errors import DataError, reason
from training.run.files import read_bounded

FORMAT = 1
INDEX = "index.json"
TOKENIZER = "tokenizer"
TRAIN, HELDOUT = "train", "heldout"
LARGEST = 256 * 2**20  # bytes of index.json; it has some hundred for each file
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """A file's size in bytes and its digest."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """One split: documents, their UTF-8 bytes, their tokens (bos and eos included), and its files."""

    documents: int
    bytes: int
    tokens: int
    shards: list[str]
    shard_tokens: list[int]
    starts: str


@dataclass(frozen=True)
class Index:
    """The content of index.json. `vocabulary` is the tokenizer's largest id plus one.

    `unigram_nats` is the entropy of the predicted held-out tokens (all except bos): the held-out loss of a
    model that knows only how frequent each token is.
    """

    format: int
    settings: dict[str, Any]
    source: dict[str, int]
    vocabulary: int
    bos: int
    eos: int
    dtype: str
    unigram_nats: float
    splits: dict[str, Split]
    files: dict[str, FileEntry]
    digest: str = ""

    def content_digest(self) -> str:
        """Return the digest of the dataset's content, file digests included, without the settings."""
        content = {key: value for key, value in asdict(self).items() if key not in ("settings", "digest")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of index.json, with the digest filled in."""
        content = {**asdict(self), "digest": self.content_digest()}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read_index(directory: Path) -> Index:
    """Read index.json and check it against its own digest; DataError if it is damaged."""
    path = directory / INDEX
    try:
        content = json.loads(read_bounded(path, LARGEST, follow=True))
    except FileNotFoundError:
        raise DataError(f"{directory} is not a prepared dataset: it has no {INDEX}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: not JSON ({error}); {_remedy(directory)}") from None
    if isinstance(content, dict) and content.get("format") != FORMAT:
        found = content.get("format")
        raise DataError(f"{path} has format {found!r}, this code reads {FORMAT}; {_remedy(directory)}")
    try:
        splits = {name: Split(**split) for name, split in content.pop("splits").items()}
        files = {name: FileEntry(**entry) for name, entry in content.pop("files").items()}
        index = Index(**content, splits=splits, files=files)
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}; {_remedy(directory)}") from None
    if index.digest != index.content_digest():
        raise DataError(f"{path} is damaged: its digest does not match its content; {_remedy(directory)}")
    for name in index.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{path} names a file outside of the dataset: {name[:200]!r}")
    for split in index.splits.values():
        unknown = [name for name in (*split.shards, split.starts) if name not in index.files]
        if unknown:
            raise DataError(f"{path} does not give the size of {str(unknown[0])[:200]!r}")
    return index


def check_sizes(directory: Path, index: Index) -> None:
    """Raise DataError with the first file that is missing or has another size than the index says."""
    for name, entry in index.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
        except OSError as error:
            remedy = f"; {_remedy(directory)}" if isinstance(error, FileNotFoundError) else ""
            raise DataError(f"dataset file {path}: {reason(error)}{remedy}") from error
        if size != entry.size:
            raise DataError(f"dataset file {path} has {size} bytes, not {entry.size}; {_remedy(directory)}")


def verify(directory: Path) -> Index:
    """Check sizes and digests of all files of a dataset; return its index. DataError names the bad file."""
    index = read_index(directory)
    check_sizes(directory, index)
    for name, entry in index.files.items():
        if digest_of(directory / name) != entry.sha256:
            path = directory / name
            raise DataError(f"dataset file {path} is damaged: sha256 does not match; {_remedy(directory)}")
    return index


def digest_of(path: Path) -> str:
    """Return the sha256 of a file; DataError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error
    return digest.hexdigest()


def _remedy(directory: Path) -> str:
    return f"remove {directory} to have it prepared again"
