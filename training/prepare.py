"""Prepare a configuration's data: `python -m training.prepare --config DIR --data DIR`, or within a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from training.config import Config, ConfigError, load
from training.data.errors import DataError
from training.data.prepare import prepare
from training.waiting import Ranks, while_others_wait


def prepare_for(config: Config, root: Path, progress: Callable[[str], None]) -> Path:
    """Directory of the configuration's dataset under `root`, made when it is not there yet."""
    return prepare(
        source=config.data.source,
        text_field=config.data.text_field,
        heldout_fraction=config.data.heldout_fraction,
        tokenizer=config.data.tokenizer,
        vocab_size=config.model.vocab_size,
        root=root,
        progress=progress,
    )


def prepare_together(config: Config, ranks: Ranks, root: Path, progress: Callable[[str], None]) -> Path:
    """The dataset on every rank: rank 0 makes it, then one rank of each node that does not see it.

    The others keep answering meanwhile, so that no collective times out however long it takes.
    """
    for leader in (ranks.first, ranks.local_rank == 0):
        while_others_wait(ranks, (lambda: prepare_for(config, root, progress)) if leader else None)
    return prepare_for(config, root, progress)


def main() -> None:
    """Command line: progress on stdout; exit 2 with one line on stderr when the data cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", required=True, help="directory with model.yaml, hardware.yaml and cell.yaml"
    )
    parser.add_argument("--data", required=True, type=Path, help="directory that holds prepared datasets")
    arguments = parser.parse_args()
    try:
        prepare_for(load(arguments.config), arguments.data, lambda line: print(line, flush=True))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
