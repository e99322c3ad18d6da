"""AdamW with decay groups, and warm-up + cosine."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.config import Train
from training.model import trained_parameters


def build_optimizer(model: nn.Module, recipe: Train) -> torch.optim.AdamW:
    """Fused AdamW; matrices decay, vectors (norms) do not."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for _, parameter in trained_parameters(model):
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), eps=recipe.epsilon, fused=True
    )


def learning_rate_factor(step: int, recipe: Train) -> float:
    """Share of the peak learning rate at a step (from 0): linear warm-up, then cosine down to the minimum."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = min(1.0, (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps))
    low = recipe.min_learning_rate_ratio
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))


def build_schedule(optimizer: torch.optim.Optimizer, recipe: Train) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, recipe))


def clip_gradients(model: nn.Module, limit: float) -> torch.Tensor:
    """Scale all gradients to a global norm of at most `limit`; returns the norm before, on the device."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
