"""Opens a configuration's stream: prepares its first part and splits its files into lanes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from training.data.errors import DataError
from training.data.index import TOKENIZER, read_index
from training.data.prepare_tokens import prepare_tokens
from training.data.readers import ROWS, Place, is_rows
from training.data.sources import open_source
from training.data.stream.feed import StreamFeed, lanes_for
from training.data.stream.lanes import Plan
from training.data.tokenizer import given_files, load

if TYPE_CHECKING:
    from training.config import Config
    from training.distributed.ranks import Ranks

_MB = 1_000_000


def prepare_first(config: Config, root: Path, progress: Callable[[str], None], shared: Path | None = None) -> Path:
    """Return the dataset of the stream's first part; create it if it is missing. Raises DataError."""
    data = config.data
    assert data.stream is not None
    _files(config)
    return prepare_tokens(
        source=data.source,
        text_field=data.text_field,
        heldout_fraction=data.heldout_fraction,
        tokenizer=data.tokenizer,
        vocab_size=config.model.vocab_size,
        root=root,
        progress=progress,
        first_bytes=data.stream.first_mb * _MB,
        shared=shared,
    )


def open_stream(config: Config, first: Path, ranks: Ranks, say: Callable[[str], None]) -> StreamFeed:
    """Return this rank's feed of a stream whose first part is prepared. Raises DataError."""
    data = config.data
    assert data.stream is not None
    files = _files(config)
    index = read_index(first)
    tokenizer = load(str(first), given_files(str(first / TOKENIZER)), config.model.vocab_size, padded=True)
    plan = Plan(
        files=files,
        text_field=data.text_field,
        lanes=lanes_for(config, len(files), ranks.world_size),
        seed=config.train.seed,
        block=data.stream.shuffle_buffer,
        heldout_below=index.settings["heldout_below"],
        sequence_length=config.sequence_length,
        encode=lambda texts: tokenizer.encode(texts, index.dtype),
    )
    return StreamFeed(config, plan, first, ranks, say)


def _files(config: Config) -> tuple[Place, ...]:
    """Return the stream's files; DataError if one does not hold rows."""
    files = tuple(file.path for file in open_source(config.data.source, config.data.text_field).files)
    for place in files:
        if not is_rows(place):
            raise DataError(
                f"data source {place}: a stream reads {ROWS} files; "
                "leave out data.stream to have other files prepared first"
            )
    return files
