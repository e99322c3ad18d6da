"""AdamW or LAMB with decay groups, and the learning rate's schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from training.config import Train
from training.models.causal import trained_parameters
from training.trainer.half_adamw import HalfAdamW
from training.trainer.lamb import Lamb


def build_optimizer(
    model: nn.Module, recipe: Train, *, fused: bool = True, compiled: bool = False
) -> torch.optim.Optimizer:
    """AdamW, fused or, for moments in bf16, compiled if wanted; or LAMB. Matrices decay, norms and biases do not."""
    kinds: dict[tuple[bool, Any], list[nn.Parameter]] = {}  # torch updates those of one mesh together
    for _, parameter in trained_parameters(model):
        kinds.setdefault((parameter.ndim < 2, getattr(parameter, "device_mesh", None)), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": 0.0 if vectors else recipe.weight_decay, "adapt": not vectors}
        for (vectors, _), parameters in kinds.items()
    ]
    rate, betas, epsilon = recipe.learning_rate, (recipe.beta1, recipe.beta2), recipe.epsilon
    if recipe.optimizer == "lamb":
        return Lamb(groups, rate, betas, epsilon)
    if recipe.moment_precision == "bf16":
        return HalfAdamW(groups, rate, betas, epsilon, compiled=compiled)
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=fused)


def learning_rate_factor(step: int, recipe: Train) -> float:
    """The learning rate at a step (from 0) as a fraction of the peak: linear warm-up, then decay.

    It decays over the steps after the warm-up, as in transformers' schedules: `linear` with 1 - progress,
    `polynomial` with a power of that.
    """
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = min(1.0, (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps))
    low = recipe.min_learning_rate_ratio
    if recipe.schedule == "cosine":
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))
    return low + (1 - low) * (1 - progress) ** (recipe.schedule_power or 1.0)


def build_schedule(optimizer: torch.optim.Optimizer, recipe: Train) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, recipe))


def clip_gradients(model: nn.Module, limit: float) -> torch.Tensor:
    """Scale all gradients to a global norm of at most `limit`; return the previous norm, on the device."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    meshes = {gradient.device_mesh for gradient in gradients if isinstance(gradient, DTensor)}
    if len(meshes) < 2:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
    local = {
        mesh: [g.to_local() for g in gradients if isinstance(g, DTensor) and g.device_mesh == mesh] for mesh in meshes
    }
    norm = torch.stack([_squares(mesh, parts) for mesh, parts in local.items()]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parts in local.values():
        torch._foreach_mul_(parts, factor)
    return norm


def _squares(mesh: DeviceMesh, parts: list[torch.Tensor]) -> torch.Tensor:
    """Sum of the squares of gradients that are split over each dimension of a mesh but that of replicas."""
    total = torch.stack(torch._foreach_norm(parts)).square().sum()
    for name in mesh.mesh_dim_names or ():
        if name != "replicate":
            dist.all_reduce(total, group=mesh.get_group(name))
    return total
