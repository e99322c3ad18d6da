"""Turns a model on meta into one that trains on all ranks: one function that documents the order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from training.config import Config
from training.device import Device
from training.distributed.ranks import Ranks
from training.models.counting import parameters
from training.task import Task, Trainable

# With fewer parameters than this, gathered weights stay in memory between forward and backward: one
# all-gather per step instead of two. Larger models free them.
KEEP_GATHERED_BELOW = 4_000_000_000


@dataclass(frozen=True)
class Parallel:
    """The model to call, the model inside it, and how its gradients are exchanged."""

    wrapped: nn.Module
    model: Trainable
    ranks: Ranks

    @contextmanager
    def exchange(self, now: bool) -> Iterator[None]:
        """Exchange gradients in backward passes inside this context, or only accumulate them."""
        if isinstance(self.wrapped, FSDPModule):
            self.wrapped.set_requires_gradient_sync(now)
            yield
        elif isinstance(self.wrapped, DistributedDataParallel) and not now:
            with self.wrapped.no_sync():
                yield
        else:
            yield

    def exchange_rest(self, device: Device) -> None:
        """Exchange gradients after the backward passes, on devices that do it this way."""
        if not device.wraps:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            device.exchange(gradients, self.ranks.group, self.ranks.world_size)

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the whole model."""
        return not isinstance(self.wrapped, FSDPModule)

    def autocast(self, device: Device) -> AbstractContextManager[Any]:
        """bf16 computation; for sharded models FSDP's mixed precision policy does it."""
        return device.autocast() if self.replicated else contextlib.nullcontext()

    @contextmanager
    def evaluating(self, device: Device) -> Iterator[None]:
        """No gradients, no dropout. On a CPU blocks run uncompiled: compiling them again costs more time."""
        eager = contextlib.nullcontext() if device.is_cuda else torch.compiler.set_stance("force_eager")
        self.wrapped.eval()
        try:
            with torch.no_grad(), eager:
                yield
        finally:
            self.wrapped.train()
            for module in self.wrapped.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # gathered weights would be stale after the next optimizer step


def parallelise(task: Task, config: Config, device: Device, ranks: Ranks) -> Parallel:
    """Build on meta, checkpoint activations, compile blocks, shard, initialise, replicate: in this order."""
    model = task.build(config, device)
    if config.parallel.activation_checkpointing == "full":
        for block in model.blocks():
            block.forward = _recomputing(block.forward)
    if device.compile:
        # Blocks overlap with the exchange of gradients as they are: no need to split them further.
        torch._dynamo.config.optimize_ddp = False
        for block in model.blocks():
            block.compile(fullgraph=True)
        model.compile_outside()
    shard = config.parallel.sharding == "fsdp" and ranks.group is not None
    if shard:
        _shard(model, config, device, ranks)
    task.initialise(model, config, device.birthplace, ranks)
    device.settle(model)
    if shard or ranks.world_size == 1 or not device.wraps:
        return Parallel(model, model, ranks)
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.torch_device.index] if device.is_cuda else None,
        gradient_as_bucket_view=True,
    )
    # No buffer changes. The argument of this name is deprecated; the attribute is known to every release.
    wrapped.broadcast_buffers = False
    return Parallel(wrapped, model, ranks)


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A block's forward pass that keeps only its arguments and is computed again in the backward pass.

    It is defined in this file because the compiler begins at the first frame outside torch's own files.
    """

    def forward_again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return forward_again


def _shard(model: Trainable, config: Config, device: Device, ranks: Ranks) -> None:
    mesh = init_device_mesh(device.torch_device.type, (ranks.world_size,))
    half = torch.bfloat16 if device.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    reshard = parameters(config.model) >= KEEP_GATHERED_BELOW
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
