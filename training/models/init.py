"""Initial values that depend on (seed, parameter name, rows) only.

Every rank fills only the rows that it holds. Any number of ranks, sharded or not, starts from the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import nn

from training.checkpoint.shards import Shard, filled

_BLOCK = 2**20  # elements drawn from one generator


def fill_normal(name: str, parameter: nn.Parameter, seed: int, deviation: float) -> None:
    """Fill the local rows from a normal distribution around 0."""
    _fill(name, parameter, seed, lambda shape, draw: torch.randn(*shape, generator=draw).mul_(deviation))


def fill_uniform(name: str, parameter: nn.Parameter, seed: int, bound: float) -> None:
    """Fill the local rows uniformly from [-bound, bound)."""
    _fill(
        name, parameter, seed,
        lambda shape, draw: torch.rand(*shape, generator=draw).mul_(2 * bound).sub_(bound),
    )  # fmt: skip


def _fill(
    name: str,
    parameter: nn.Parameter,
    seed: int,
    draw: Callable[[tuple[int, int], torch.Generator], torch.Tensor],
) -> None:
    """Fill the local rows block by block; a block's generator is keyed by (seed, name, block)."""
    with filled([(name, parameter)]) as shards:
        _fill_rows(name, shards[name], seed, draw)


def _fill_rows(
    name: str, shard: Shard, seed: int, draw: Callable[[tuple[int, int], torch.Generator], torch.Tensor]
) -> None:
    local = shard.tensor
    rows, width = local.shape[0], math.prod(local.shape[1:])
    block_rows = max(1, _BLOCK // width)
    row = shard.row_offset
    while row < shard.row_offset + rows:
        block = row // block_rows
        key = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
        count = min(block_rows, shard.global_shape[0] - block * block_rows)
        values = draw((count, width), generator)
        first = row - block * block_rows
        take = min(count - first, shard.row_offset + rows - row)
        start = row - shard.row_offset
        local[start : start + take].copy_(values[first : first + take].view(take, *local.shape[1:]))
        row += take
