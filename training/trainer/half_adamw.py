"""AdamW with moments in bf16: half of their memory, and each update of them rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor


class HalfAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2), computed in fp32 over moments in bf16.

    A moment with 8 bits of precision loses a change below 1/512 of itself, so that it stops moving with a second
    decay rate near 1: the configuration allows 0.99 at most.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, *, compiled: bool
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._update = torch.compile(_update, fullgraph=True, dynamic=True) if compiled else _update

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= empty_moments(parameter, torch.bfloat16)
                state["step"] += 1
                weight, gradient, mean, square = map(
                    _flat, (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
                )
                rate = torch.full_like(state["step"], group["lr"])
                self._update(
                    weight, gradient, mean, square, 1 - beta1 ** state["step"], 1 - beta2 ** state["step"], rate,
                    beta1, beta2, group["eps"], group["weight_decay"],
                )  # fmt: skip


def empty_moments(parameter: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The state of a parameter before its first step, laid out as the parameter is."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=_local(parameter).device),
        "exp_avg": torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format),
    }


def _update(
    weight: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor,
    unbias1: torch.Tensor, unbias2: torch.Tensor, rate: torch.Tensor,
    beta1: float, beta2: float, epsilon: float, decay: float,
) -> None:  # fmt: skip
    """Update weight and moments in place; all are flat, the moments bf16, the others fp32."""
    mean32 = torch.lerp(mean.float(), gradient, 1 - beta1)
    square32 = square.float() * beta2 + gradient * gradient * (1 - beta2)
    step = mean32 / unbias1 / ((square32 / unbias2).sqrt() + epsilon)
    weight.copy_(weight * (1 - rate * decay) - rate * step)
    mean.copy_(mean32)
    square.copy_(square32)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return _local(tensor).detach().view(-1)
