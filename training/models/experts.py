"""The products of a mixture of experts in autocast's precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call


def follow_autocast(experts: nn.Module) -> None:
    """Make experts multiply in autocast's precision, as a linear layer does.

    torch's grouped product is not an operation of autocast (github.com/pytorch/pytorch/issues/174763). Without this it
    multiplies in fp32, which takes more memory and time.
    """
    plain: Callable[..., torch.Tensor] = experts.forward

    def forward(hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """hidden [tokens, width]; chosen, int64, and shares, fp32 [tokens, experts per token] → [tokens, width]."""
        kind = hidden.device.type
        if not torch.is_autocast_enabled(kind):
            return plain(hidden, chosen, shares)
        dtype = torch.get_autocast_dtype(kind)
        weights = {name: weight.to(dtype) for name, weight in experts.named_parameters()}
        with torch.autocast(kind, enabled=False):
            found: torch.Tensor = functional_call(experts, weights, (hidden.to(dtype), chosen, shares))
        return found

    experts.forward = forward
