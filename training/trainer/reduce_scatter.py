"""FSDP's reduce-scatter on a CPU: ranks swap chunks during the backward pass, and each adds up its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter


@dataclass(frozen=True)
class _Exchange:
    """Chunks on their way. `sent` lives until they have arrived."""

    work: dist.Work
    sent: torch.Tensor
    received: torch.Tensor  # [ranks * chunk]
    own: torch.Tensor  # [chunk]: the sum of the received chunks
    mean: bool

    def finish(self) -> None:
        self.work.wait()
        ranks = self.received.numel() // self.own.numel()
        torch.sum(self.received.view(ranks, -1), dim=0, out=self.own)
        if self.mean:
            self.own.div_(ranks)


class GlooReduceScatter(ReduceScatter):
    """A reduce-scatter for gloo, whose own is an all-reduce of everything that FSDP waits for after each block.

    With `overlaps`, a block's chunks are exchanged during the backward pass of the next block, and all sums are ready
    when the backward pass ends. Do not use it where FSDP reads a sum at once, to add to it or to cast it.
    """

    def __init__(self, overlaps: bool) -> None:
        self.overlaps = overlaps
        self._started: _Exchange | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Sum chunks of `input_tensor` [ranks * chunk] into `output_tensor` [chunk], or take their mean.

        With `overlaps`, call it only within a backward pass.
        """
        received = torch.empty_like(input_tensor)
        work = dist.all_to_all_single(received, input_tensor, group=group, async_op=True)
        assert work is not None
        self._finish()
        self._started = _Exchange(work, input_tensor, received, output_tensor, op == dist.ReduceOp.AVG)
        if self.overlaps:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        """Wait for the last exchange, if it is not finished, and sum what arrived."""
        started, self._started = self._started, None
        if started is not None:
            started.finish()
