"""Opens the places of a run's checkpoints, and refuses those that cannot work before the first step."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from training.checkpoint.errors import CheckpointError, UnusableError
from training.checkpoint.keep import Rules
from training.checkpoint.node import Nodes
from training.checkpoint.peers import Peers
from training.checkpoint.s3 import Bucket
from training.checkpoint.store import Store
from training.checkpoint.tiers import Remote, Tiers
from training.config import Config, ConfigError
from training.config.run import S3, Local
from training.distributed.ranks import Ranks, own_group
from training.run.directory import RunDir
from training.trainer.space import check_space, rules_of

LONGEST_COPY = timedelta(hours=6)  # that one rank may be ahead of another while a step is copied to a bucket
FEWEST = 2
log = logging.getLogger("trainyard")


def open_tiers(config: Config, directory: RunDir, ranks: Ranks, size: int, timeout: timedelta) -> Tiers:
    """Open all places; a checkpoint has `size` bytes. All ranks call it together.

    Raises:
        ConfigError: names the key of a place that cannot be written or has too little space, and a value that works.
    """
    keys, wanted = config.checkpoint, config.checkpoint.tiers
    group = own_group(ranks, timeout) if keys.asynchronous else ranks.group
    store = Store(directory.checkpoints, keep=rules_of(config), group=group, log=log.warning)
    if ranks.first:
        check_space(config, directory, size)
    nodes = None if wanted.local is None else _nodes(wanted.local, directory.name, store.peers, size)
    remote = None
    if wanted.s3 is not None:
        own = Peers(own_group(ranks, LONGEST_COPY))
        remote = _remote(wanted.s3, directory.name, store, own)
    nodes_every = keys.every if wanted.local is None else wanted.local.every
    return Tiers(
        store, every=keys.every, steps=config.train.steps, nodes=nodes, nodes_every=nodes_every, remote=remote,
        log=log.warning, say=log.info,
    )  # fmt: skip


def _nodes(wanted: Local, run: str, peers: Peers, size: int) -> Nodes:
    key = "checkpoint.tiers.local"
    node = os.environ.get("HOSTNAME") or socket.gethostname()
    try:
        nodes = Nodes(Path(wanted.path), run, node, peers, keep=wanted.keep, log=log.warning)
    except CheckpointError as error:
        near = next((each for each in ("/dev/shm", tempfile.gettempdir()) if os.access(each, os.W_OK)), "")
        raise ConfigError(f"{key}.path is {wanted.path!r}: {error}; nearest value that works here: {near}") from error
    if nodes.count == 1 and peers.rank == 0:
        log.info("checkpoints in %s have no copy: there is one node only", wanted.path)
    each = -(-size * (2 if nodes.count > 1 else 1) // nodes.count)
    fits = nodes.free() // max(1, each) - 1
    if wanted.keep > fits:
        advice = f"nearest value that fits: {fits}" if fits >= FEWEST else f"not even {FEWEST} would fit: free space"
        raise ConfigError(
            f"{key}.keep is {wanted.keep}, {advice}: one checkpoint takes {each / 2**30:,.2f} GiB of {wanted.path} on "
            f"each node, and {nodes.free() / 2**30:,.2f} GiB are free"
        )
    return nodes


def _remote(wanted: S3, run: str, store: Store, own: Peers) -> Remote:
    rules = Rules(wanted.keep, wanted.keep_every, wanted.keep_best)
    try:
        bucket = Bucket(f"{wanted.to}/{run}")
    except CheckpointError as error:
        raise ConfigError(f"checkpoint.tiers.s3.to is {wanted.to!r}: {error}") from error
    problem, fatal = store.peers.agree(lambda: None, lambda _: _trouble(bucket.check_access))
    if fatal:
        raise ConfigError(f"checkpoint.tiers.s3.to is {wanted.to!r}: {problem}")
    if problem:
        log.warning("cannot check yet whether checkpoints can be copied: %s", problem)
    return Remote(bucket, store, own, every=wanted.every, keep=rules, log=log.warning, say=log.info)


def _trouble(check: Callable[[], None]) -> tuple[str, bool]:
    """What is wrong, empty if nothing is, and whether it will stay so."""
    try:
        check()
    except CheckpointError as error:
        return str(error), isinstance(error, UnusableError)
    return "", False
