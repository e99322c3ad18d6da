"""Jobs that may shrink and grow: whether a configuration can train at each size between its bounds."""

from __future__ import annotations

from training.config.base import ConfigError
from training.config.config import Config


def check(config: Config, per_node: int) -> None:
    """Check that the job can train with each number of nodes that it may have; `per_node` are the ranks of each.

    Raises:
        ConfigError: names nodes.min or nodes.max, and the nearest value that works.
    """
    bounds = config.nodes
    if bounds is None:
        return
    sizes = range(bounds.min, bounds.max + 1)
    for size in sizes:
        reason = _why_not(config, size * per_node, per_node)
        if reason and size > bounds.min:
            _refuse("max", bounds.max, size, reason, size - 1)
        if reason:
            near = [one for one in range(1, bounds.max + 1) if not _why_not(config, one * per_node, per_node)]
            _refuse("min", size, size, reason, min(near, key=lambda one: abs(one - size), default=None))


def _refuse(key: str, value: int, size: int, reason: str, nearest: int | None) -> None:
    hint = f"nearest value: {nearest}" if nearest else "no number of nodes works"
    nodes = f"{size} node{'s' * (size != 1)}"
    raise ConfigError(f"nodes.{key} is {value}, but {nodes} cannot train: {reason}; {hint}")


def _why_not(config: Config, world: int, per_node: int) -> str:
    """Why this number of ranks cannot train; empty if it can."""
    batch, micro, tensor = config.train.global_batch_size, config.parallel.micro_batch_size, config.parallel.tensor
    try:
        config.accumulation(world)
    except ConfigError:
        return f"train.global_batch_size {batch} has no micro batches of {micro} for {world // tensor} ranks to share"
    part, shards = config.parallel.reshard_after_forward, world // tensor
    if config.parallel.sharding == "hsdp":
        shards = per_node // tensor
    if type(part) is int and not (1 < part < shards and shards % part == 0):
        return f"parallel.reshard_after_forward {part} is not a part of {shards} ranks"
    return ""
