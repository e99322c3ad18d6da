"""LAMB: Adam with each matrix's step scaled to the matrix's norm, for very large batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from training.trainer.half_adamw import empty_moments


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019, Large Batch Optimization for Deep Learning, arXiv 1904.00962, algorithm 2).

    It has bias correction, decoupled decay inside the scaled step, and no scaling of groups whose `adapt` is
    false (biases and norms), like NVIDIA's FusedLAMB, which BERT's published recipe uses. Gradients must be
    clipped before. The step is computed in the gradients' memory and overwrites them. Sharded parameters (all
    on one mesh) need one small all-reduce per step for their norms.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; afterwards the gradients hold the update."""
        moved = [
            (group, parameter, self._update(group, parameter))
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        adapted = [(parameter, update) for group, parameter, update in moved if group["adapt"]]
        ratios = iter(_trust_ratios(adapted))
        for group, parameter, update in moved:
            own = _local(parameter)
            if group["adapt"]:
                own.addcmul_(update, next(ratios), value=-group["lr"])
            else:
                own.add_(update, alpha=-group["lr"])

    def _update(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        """Adam's update of this rank's rows, decay included, before learning rate and scaling."""
        state = self.state[parameter]
        if not state:
            state |= empty_moments(parameter, torch.float32)
        assert parameter.grad is not None
        gradient, mean, square = map(_local, (parameter.grad, state["exp_avg"], state["exp_avg_sq"]))
        beta1, beta2 = group["betas"]
        state["step"] += 1
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        deviation = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        torch.div(mean, deviation.mul_(1 - beta1 ** state["step"]), out=gradient)
        return gradient.add_(_local(parameter), alpha=group["weight_decay"])


def _trust_ratios(adapted: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Norm of each parameter divided by the norm of its update, over all of its rows; 1 if either is 0."""
    if not adapted:
        return []
    squares = torch.stack(
        [_local(parameter).square().sum() for parameter, _ in adapted]
        + [update.square().sum() for _, update in adapted]
    )
    first = adapted[0][0]
    if isinstance(first, DTensor):
        mesh = first.device_mesh
        dist.all_reduce(squares, group=mesh.get_group(mesh.ndim - 1))  # the ranks among which rows are split
    weights, updates = squares.sqrt().chunk(2)
    ratios = torch.where((weights > 0) & (updates > 0), weights / updates, torch.ones_like(weights))
    return list(ratios.unbind())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
