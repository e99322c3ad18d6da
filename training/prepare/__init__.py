"""Prepare a configuration's data: `python -m training.prepare --config DIR --data DIR`, or within a job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from training.config import BERT, FINETUNE, Config, ConfigError, load
from training.data.errors import DataError
from training.data.prepare_tokens import prepare_tokens
from training.data.stream.open import prepare_first
from training.distributed.rank_zero import Ranks, while_others_wait
from training.run.directory import RunDir


def prepare_for(config: Config, root: Path, progress: Callable[[str], None], shared: Path | None = None) -> Path:
    """Return the directory of the configuration's dataset: that under `shared`, where nothing is written,
    else that under `root`, which is created if it is missing.

    For a stream it is the dataset of its first part.
    """
    if config.data.stream is not None:
        return prepare_first(config, root, progress, shared)
    return prepare_tokens(
        source=config.data.source,
        text_field=config.data.text_field,
        heldout_fraction=config.data.heldout_fraction,
        tokenizer=config.data.tokenizer,
        vocab_size=config.model.vocab_size,
        root=root,
        progress=progress,
        shared=shared,
    )


def together(ranks: Ranks, make: Callable[[], Path]) -> Path:
    """Return the result of `make` on every rank: rank 0 calls it first, then one rank per node, then all.

    The first calls may take long: the other ranks keep answering, so that no collective times out. The last
    one finds the result in place.
    """
    for leader in (ranks.first, ranks.local_rank == 0):
        while_others_wait(ranks, make if leader else None)
    return make()


def main() -> None:
    """Command line: progress on stdout; exit 2 with one line on stderr if the data cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="directory with model.yaml, hardware.yaml and cell.yaml")
    parser.add_argument("--data", required=True, type=Path, help="directory that holds prepared datasets")
    parser.add_argument(
        "--show-example",
        action="store_true",
        help="print one example with its learned parts marked; prepare nothing",
    )
    arguments = parser.parse_args()
    run = RunDir(os.environ.get("TRAINYARD_RUN", "local/runs/prepare"))
    try:
        _main(load(arguments.config), arguments.data, run, arguments.show_example)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _main(config: Config, root: Path, run: RunDir, show_example: bool) -> None:
    def say(line: str) -> None:
        print(line, flush=True)

    if config.task == FINETUNE:
        _examples(config, root, run, show_example, say)
    elif show_example:
        raise ConfigError(f"only fine-tuning has examples to show, but this configuration is for {config.task}")
    elif config.task == BERT:
        _pairs(config, root, run, say)
    else:
        prepare_for(config, root, say)


def _examples(config: Config, root: Path, run: RunDir, show_example: bool, say: Callable[[str], None]) -> None:
    from training.checkpoint.errors import CheckpointError
    from training.prepare import examples

    try:
        if show_example:
            say(examples.show_example(config, run, say))
        else:
            examples.prepare_for(config, root, run, say)
    except CheckpointError as error:  # the base is not reachable
        raise ConfigError(str(error)) from error


def _pairs(config: Config, root: Path, run: RunDir, say: Callable[[str], None]) -> None:
    from training.checkpoint.errors import CheckpointError
    from training.prepare import bert
    from training.weights.bert import open_for

    try:
        weights = open_for(config, run, None, say)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    bert.prepare_for(config, root, say, weights.tokenizer if weights else None)
