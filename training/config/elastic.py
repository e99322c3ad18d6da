"""Whether ranks can train a configuration: as many as a job has, and as many as an elastic one may have."""

from __future__ import annotations

from training.config.base import ConfigError, divisor_near
from training.config.config import Config
from training.config.job import Nodes


def check(config: Config, world: int, per_node: int) -> None:
    """Check that `world` ranks, `per_node` of each node, can train; of an elastic job, at each size that it may have.

    Raises:
        ConfigError: names the key that does not fit, and the nearest value that works.
    """
    tensor = config.parallel.tensor
    if per_node % tensor:
        raise ConfigError(
            f"parallel.tensor {tensor} does not divide the {per_node} ranks of a node; "
            f"nearest value: {divisor_near(per_node, tensor)}"
        )
    if config.nodes is not None:
        _check_bounds(config, config.nodes, per_node)
    config.accumulation(world)
    part, shards = config.parallel.reshard_after_forward, _shards(config, world, per_node)
    if type(part) is int and not _is_part(part, shards):
        near = divisor_near(shards, min(part, shards - 1)) if shards > 1 else 1
        raise ConfigError(
            f"parallel.reshard_after_forward is {part}, but {shards} ranks share the model, and a part must be a "
            f"divisor between 1 and {shards}; nearest value: {near if near > 1 else 'true'}"
        )


def _check_bounds(config: Config, bounds: Nodes, per_node: int) -> None:
    for size in range(bounds.min, bounds.max + 1):
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
    part, shards = config.parallel.reshard_after_forward, _shards(config, world, per_node)
    if type(part) is not int or _is_part(part, shards):
        return ""
    return f"parallel.reshard_after_forward {part} is not a part of {shards} ranks"


def _shards(config: Config, world: int, per_node: int) -> int:
    """Number of ranks that share one replica of the model."""
    return (per_node if config.parallel.sharding == "hsdp" else world) // config.parallel.tensor


def _is_part(part: int, shards: int) -> bool:
    """Whether so many of the ranks can hold a block together: not 3 of 8."""
    return 1 < part < shards and shards % part == 0
