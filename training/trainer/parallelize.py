"""Turns a model on meta into one that trains on all ranks: one function that documents the order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from training.config import Config
from training.config.choices import frees_early
from training.device import Device
from training.distributed.ranks import Ranks
from training.models.causal import CausalLM
from training.task import Task, Trainable
from training.trainer.activations import keep_less
from training.trainer.float8 import use_float8
from training.trainer.reduce_scatter import GlooReduceScatter
from training.trainer.tensor import split_products


@dataclass(frozen=True)
class Parallel:
    """The model to call, the model inside it, and how its gradients are exchanged."""

    wrapped: nn.Module
    model: Trainable
    ranks: Ranks
    reduces_each: bool = False
    """Whether every micro batch adds its gradients to the rank's shard, so that no whole gradients are kept."""
    keeps_gathered: bool = False
    """Whether gathered weights stay between a step's passes, and its micro batches."""
    gathers_ahead: bool = False
    """Whether all gathers start before a step's first pass. On a CPU, FSDP's own prefetch blocks."""

    @contextmanager
    def exchange(self, last: bool) -> Iterator[None]:
        """Exchange gradients in the backward pass of a step's last micro batch; before, only accumulate them."""
        if isinstance(self.wrapped, FSDPModule):
            self.wrapped.set_requires_gradient_sync(last or self.reduces_each)
            self.wrapped.set_requires_all_reduce(last)  # between the replicas of hsdp
            self.wrapped.set_reshard_after_backward(last or not self.keeps_gathered)
            for module in _sharded(self.wrapped) if self.gathers_ahead else ():
                module.unshard(async_op=True)
            yield
        elif isinstance(self.wrapped, DistributedDataParallel) and not last:
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
        """No gradients, no dropout. Blocks run uncompiled where compiling them again costs more time."""
        eager = contextlib.nullcontext() if device.compiles_evaluation else torch.compiler.set_stance("force_eager")
        self.wrapped.eval()
        try:
            with torch.no_grad(), eager:
                yield
        finally:
            self.wrapped.train()
            for module in _sharded(self.wrapped):
                module.reshard()  # gathered weights would be stale after the next optimizer step


def parallelise(task: Task, config: Config, device: Device, ranks: Ranks) -> Parallel:
    """Build on meta, split and round products, keep less, compile, shard, initialise, replicate: in this order."""
    model = task.build(config, device)
    mesh = _mesh(config, device, ranks) if _splits(config, ranks) else None
    if mesh is not None and config.parallel.tensor > 1:
        assert isinstance(model, CausalLM)
        split_products(model, mesh["tensor"])
    use_float8(model, config, device)
    keep_less(model, config.parallel, device)
    if device.compile:
        # Blocks overlap with the exchange of gradients as they are: no need to split them further.
        torch._dynamo.config.optimize_ddp = False
        for block in model.blocks():
            block.compile(fullgraph=True)
        model.compile_outside()
    birthplace, keeps_gathered, gloo = device.birthplace, False, _by_gloo(device)
    if mesh is not None:
        keeps_gathered = _shard(model, config, device, mesh)
        if gloo:
            _replace_reduce_scatter(model, config)
        birthplace = torch.device("cpu") if config.parallel.offload == "cpu" else birthplace
    task.initialise(model, config, birthplace, ranks)
    device.settle(model)
    if mesh is not None:
        _settle_buffers(model, device)
        return Parallel(model, model, ranks, frees_early(config.model), keeps_gathered, keeps_gathered and gloo)
    if ranks.world_size == 1 or not device.wraps:
        return Parallel(model, model, ranks)
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.torch_device.index] if device.is_cuda else None,
        gradient_as_bucket_view=True,
    )
    # No buffer changes. The argument of this name is deprecated; the attribute is known to every release.
    wrapped.broadcast_buffers = False
    return Parallel(wrapped, model, ranks)


def _splits(config: Config, ranks: Ranks) -> bool:
    """Whether FSDP holds the model.

    One rank has nothing to share. FSDP still saves it memory and time where it rounds fp32 weights to bf16, block by
    block; the frozen weights below adapters are bf16 already, and it would only copy them.
    """
    wanted = config.parallel
    alone = ranks.world_size == 1 and config.lora is not None and wanted.offload != "cpu"
    return wanted.sharded and ranks.group is not None and not alone


def _shard(model: Trainable, config: Config, device: Device, mesh: DeviceMesh) -> bool:
    """Split blocks and the rest by FSDP2, and return whether all gathered weights stay after a forward pass.

    The rest and the last block, which the backward pass needs first, always do.
    """
    wanted, blocks = config.parallel, model.blocks()
    half = torch.bfloat16 if device.precision == "bf16" else None
    reduced = torch.bfloat16 if wanted.reduce_precision == "bf16" else torch.float32
    offload = CPUOffloadPolicy(pin_memory=device.is_cuda) if wanted.offload == "cpu" else OffloadPolicy()
    reshard = wanted.reshard_after_forward
    if reshard == "auto":
        reshard = frees_early(config.model)
    mesh = mesh["replicate", "shard"] if wanted.sharding == "hsdp" else mesh["shard"]

    def split(module: nn.Module, reshard: bool | int) -> None:
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=reduced)
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)

    for block in blocks:
        split(block, reshard if block is not blocks[-1] else False)
    split(model, False)
    for earlier, later in pairwise(blocks):  # gather the next weights during a block's work
        assert isinstance(earlier, FSDPModule)
        assert isinstance(later, FSDPModule)
        earlier.set_modules_to_forward_prefetch([later])
        later.set_modules_to_backward_prefetch([earlier])
    return reshard is False


def _by_gloo(device: Device) -> bool:
    """Whether FSDP's collectives block, because a CPU has no streams to run them in."""
    return device.torch_device.type == "cpu"


def _replace_reduce_scatter(model: Trainable, config: Config) -> None:
    """Give each FSDP module a reduce-scatter that overlaps the backward pass, unless FSDP reads its sums at once."""
    wanted = config.parallel
    cast = wanted.reduce_precision == "bf16" or any(
        one.dtype != torch.float32 for one in model.parameters() if one.requires_grad
    )
    scatter = GlooReduceScatter(overlaps=wanted.sharding == "fsdp" and not frees_early(config.model) and not cast)
    for module in _sharded(model):
        module.set_custom_reduce_scatter(scatter)


def _sharded(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _mesh(config: Config, device: Device, ranks: Ranks) -> DeviceMesh:
    """All ranks by what they do: whole replicas (the nodes of hsdp), shards of one, and products in common."""
    hsdp, tensor = config.parallel.sharding == "hsdp", ranks.tensor
    shards = (ranks.local_world_size if hsdp else ranks.world_size) // tensor
    sizes = {"replicate": ranks.data_size // shards, "shard": shards, "tensor": tensor}
    used = (["replicate"] if hsdp else []) + ["shard"] + (["tensor"] if tensor > 1 else [])
    kind = device.torch_device.type
    return init_device_mesh(kind, tuple(sizes[name] for name in used), mesh_dim_names=tuple(used))


def _settle_buffers(model: nn.Module, device: Device) -> None:
    """Move the buffers of a model whose weights stay on the host to the device."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device.torch_device)
