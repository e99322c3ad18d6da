"""FSDP's reduce-scatter on a CPU against gloo's own, on three ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.training.sharded_init import fork
from training.trainer.reduce_scatter import GlooReduceScatter

RANKS, CHUNK = 3, 7


class Reduce(torch.autograd.Function):
    """A block whose backward pass sums chunks, as FSDP's hook does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, reduce: Callable[[], None]) -> torch.Tensor:
        ctx.reduce = reduce
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.reduce()
        return gradients[0], None


def given(block: int) -> torch.Tensor:
    return torch.randn(RANKS * CHUNK, generator=torch.Generator().manual_seed(10 * block + dist.get_rank()))


def sums(overlaps: bool) -> None:
    """Two blocks in one backward pass; after each reduction a rank notes whether its sum is ready."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group, reduce, ready = dist.group.WORLD, GlooReduceScatter(overlaps), []
    assert group is not None
    expected, own = [], [torch.full((CHUNK,), torch.nan) for _ in range(2)]
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
    for block, op in enumerate(ops):
        whole = torch.empty(CHUNK)
        dist.reduce_scatter_tensor(whole, given(block), op=dist.ReduceOp.SUM)
        expected.append(whole / RANKS if op == dist.ReduceOp.AVG else whole)

    def reduced(block: int) -> None:
        reduce(own[block], given(block), group, ops[block])
        ready.append(not own[block].isnan().any())

    x = torch.ones(1, requires_grad=True)
    for block in (1, 0):  # the backward pass does the last first
        x = Reduce.apply(x, partial(reduced, block))
    x.sum().backward()
    assert ready == [not overlaps] * 2
    for mine, theirs in zip(own, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    os.write(1, b"equal\n")
    dist.destroy_process_group()


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_sums_are_those_of_gloos_own(overlaps: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """With overlap, a sum is not ready when its reduction returns, and is when the pass ends."""
    assert fork(RANKS, partial(sums, overlaps)) == [0] * RANKS, capfd.readouterr().err
    assert capfd.readouterr().out.count("equal") == RANKS
