"""Prepare, inspect and verify token shards."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard data prepare python-stdlib --vocab-size 4096
  yard data prepare "corpus/*.jsonl.gz" --tokenizer models/llama/tokenizer.json --vocab-size 128256
  yard data prepare "https://host/part-{00..07}.parquet" --workers 8
  yard data inspect
  yard data verify local/data/python-stdlib-0123456789ab"""


@click.group(
    name="data",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Work with datasets: directories of token shards, a tokenizer and an index of digests."""
