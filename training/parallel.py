"""From a model on meta to one that trains on all ranks: one function whose order is the documentation."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from training.config import Config
from training.counting import parameters
from training.device import Device
from training.model import CausalLM, build_on_meta, initialise

# Below this many parameters gathered weights stay in memory between forward and backward: one all-gather a
# step instead of two. Larger models give them back.
KEEP_GATHERED_BELOW = 4_000_000_000


@dataclass(frozen=True)
class Ranks:
    """Who this process is. `group` carries host-side agreement (CPU tensors) apart from gradients."""

    rank: int
    world_size: int
    local_rank: int
    group: dist.ProcessGroup | None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over ranks, in float64, on every rank."""
        if self.group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def barrier(self) -> None:
        if self.group is not None:
            dist.barrier(group=self.group)


def join(device: Device, timeout: timedelta) -> Ranks:
    """Join the job that torchrun's environment describes; a process started alone is rank 0 of 1."""
    if "RANK" not in os.environ:
        return Ranks(0, 1, 0, None)
    dist.init_process_group(device.backend, timeout=timeout)
    agreement = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(agreement, dist.ProcessGroup)
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]), agreement)


@dataclass(frozen=True)
class Parallel:
    """The model to call, the model inside it, and how its gradients are exchanged."""

    wrapped: nn.Module
    model: CausalLM
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

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the whole model."""
        return not isinstance(self.wrapped, FSDPModule)

    def autocast(self, device: Device) -> AbstractContextManager[Any]:
        """bf16 compute; FSDP's own mixed precision policy does it for sharded models."""
        return device.autocast() if self.replicated else contextlib.nullcontext()

    @contextmanager
    def evaluating(self, device: Device) -> Iterator[None]:
        """No gradients, no dropout. On a CPU compiling the blocks again would cost more than it saves."""
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


def parallelise(config: Config, device: Device, ranks: Ranks) -> Parallel:
    """Build on meta, checkpoint activations, compile blocks, shard, initialise, replicate: in this order."""
    model = build_on_meta(config, device.attention)
    if config.parallel.activation_checkpointing == "full":
        model.hf.gradient_checkpointing_enable({"use_reentrant": False})
    if device.compile:
        # Blocks overlap with the exchange of gradients as they are: no need to split them further.
        torch._dynamo.config.optimize_ddp = False
        for layer in model.hf.model.layers:
            layer.compile(fullgraph=True)
        model.head_loss = torch.compile(model.head_loss, fullgraph=True)
    shard = config.parallel.sharding == "fsdp" and ranks.group is not None
    if shard:
        _shard(model, config, device, ranks)
    initialise(model, config, device.torch_device)
    if shard or ranks.world_size == 1:
        return Parallel(model, model, ranks)
    with warnings.catch_warnings():
        # Newer releases rename the argument; the oldest supported one knows only this name.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device.torch_device.index] if device.is_cuda else None,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
        )
    return Parallel(wrapped, model, ranks)


def _shard(model: CausalLM, config: Config, device: Device, ranks: Ranks) -> None:
    mesh = init_device_mesh(device.torch_device.type, (ranks.world_size,))
    half = torch.bfloat16 if device.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    reshard = parameters(config.model) >= KEEP_GATHERED_BELOW
    for layer in model.hf.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
