"""Whether the file system has room for what a run keeps, asked before the first step."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import replace

from training.checkpoint.disk import free_bytes
from training.checkpoint.keep import FEWEST, Rules
from training.config import Config, ConfigError
from training.models.causal import trained_parameters
from training.run.directory import RunDir
from training.trainer.parallelize import Parallel


def rules_of(config: Config) -> Rules:
    """The keep rules of a configuration."""
    keys = config.checkpoint
    return Rules(keys.keep, keys.keep_every, keys.keep_best, keys.keep_bad_days)


def checkpoint_bytes(config: Config, parallel: Parallel) -> int:
    """Bytes of the tensors of one checkpoint: each trained parameter with its two moments, whatever the layout."""
    moment = 2 if config.train.moment_precision == "bf16" else 4
    return sum(p.numel() * (p.element_size() + 2 * moment) for _, p in trained_parameters(parallel.model))


def check_space(config: Config, directory: RunDir, size: int) -> None:
    """Refuse a run whose checkpoints of `size` bytes do not fit; one more than it keeps exists at a time.

    What the run has there already counts as free.

    Raises:
        ConfigError: names the key that asks for most, and the nearest value that fits.
    """
    room = free_bytes(directory.checkpoints) + _held(directory)
    most = rules_of(config).most(config.train.steps, config.checkpoint.every)
    fits = room // max(1, size) - 1
    if most <= fits:
        return
    wanted = f"{most + 1} checkpoints of {size / 2**30:,.2f} GiB (one more than are kept)"
    raise ConfigError(
        f"{_advice(config, fits)}: {wanted} do not fit into the {room / 2**30:,.2f} GiB that are free or "
        f"used by this run in {directory.checkpoints}"
    )


def _held(directory: RunDir) -> int:
    """Bytes of the run's checkpoints, the set-aside ones among them."""
    found = 0
    for at, _, names in os.walk(directory.checkpoints):
        for name in names:
            try:
                found += os.lstat(os.path.join(at, name)).st_size
            except OSError:
                continue  # pruned meanwhile
    return found


def _advice(config: Config, fits: int) -> str:
    """The key that asks for most checkpoints, its value, and the nearest one with which all of them fit."""
    keys, steps = config.checkpoint, config.train.steps
    rules, every = rules_of(config), keys.every
    frugal = itertools.chain(range(keys.keep_every + every, steps + every, every), [0])
    tried: list[tuple[int, str, str, Iterable[int]]] = [
        (steps // keys.keep_every if keys.keep_every else 0, "keep_every", "every", frugal),
        (keys.keep_best, "keep_best", "best", range(keys.keep_best - 1, -1, -1)),
        (keys.keep, "keep", "last", range(keys.keep - 1, FEWEST - 1, -1)),
    ]
    for _, key, rule, values in sorted(tried, key=lambda row: -row[0]):
        for value in values:
            if replace(rules, **{rule: value}).most(steps, every) <= fits:
                return f"checkpoint.{key} is {getattr(keys, key)}, nearest value that fits: {value}"
    return f"checkpoint.keep is {keys.keep}, and not even {FEWEST}, the fewest, would fit: free space"
