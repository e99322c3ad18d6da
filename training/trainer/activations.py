"""What a block keeps for its backward pass: the policies of `parallel.activation_checkpointing`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from training.config import ConfigError, Parallel
from training.device import Device
from training.task import Trainable

_aten = torch.ops.aten
# `selective` keeps every second result of these and every result of those below. The products of attention with
# plain matrices (bmm) are computed again: their scores grow with the square of the length.
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default})
_KEPT = frozenset(
    {
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.higher_order.flex_attention,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
)
_SMALLEST = 1 << 16  # elements of a tensor that is worth a copy to the host


def keep_less(model: Trainable, wanted: Parallel, device: Device) -> None:
    """Apply the policy to each block, before the blocks are compiled.

    Raises:
        ConfigError: the policy is one of the compiler, but this device's blocks are not compiled.
    """
    policy, budget = wanted.activation_checkpointing, wanted.activation_budget
    if budget is not None and not device.compile:
        raise ConfigError(
            f"parallel.activation_checkpointing is {policy}, which the compiler carries out, but blocks are not "
            f"compiled ({device.compile_reason}); nearest value: selective"
        )
    torch._functorch.config.activation_memory_budget = 1.0 if budget is None else budget
    if policy == "offload":
        model.keeping = partial(_on_host, device.is_cuda)
    if policy in ("full", "selective"):
        for block in model.blocks():
            block.forward = _recomputing(block.forward, policy == "selective")


def _recomputing(forward: Callable[..., Any], selective: bool) -> Callable[..., Any]:
    """A block's forward pass that is computed again in the backward pass, wholly or in part.

    It is defined in this file because the compiler begins at the first frame outside torch's own files.
    """
    contexts: dict[str, Any] = {"context_fn": _selective} if selective else {}

    def forward_again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **contexts, **kwargs)

    return forward_again


def _selective() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts of one block's two forward passes, which count the products in the same way."""
    products = {False: 0, True: 0}  # by whether it is the second pass

    def policy(context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if operation in _PRODUCTS:
            products[context.is_recompute] += 1
        kept = operation in _KEPT or (operation in _PRODUCTS and products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _on_host(pinned: bool) -> AbstractContextManager[Any]:
    """Copy what blocks keep to the host's memory, and back in the backward pass; weights stay where they are."""

    def pack(tensor: torch.Tensor) -> Any:
        weight = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if weight or tensor.numel() < _SMALLEST or not tensor.dtype.is_floating_point:
            return tensor
        host = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        return tensor.device, host.copy_(tensor, non_blocking=pinned)

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        device, host = packed
        return torch.empty_like(host, device=device).copy_(host, non_blocking=pinned)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
