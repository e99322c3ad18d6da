"""`training.pretrain` with gradients that are not finite, or far too large, at some data positions.

POISON is JSON: `{"nan": [sample positions], "spike": [...], "rank": N}`; only the gradients of that rank are changed,
before ranks agree on their norm.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training import pretrain
from training.trainer import loop, optimizer
from training.trainer.main import main
from training.trainer.state import TrainState

FACTORS = {"nan": math.nan, "spike": 1e6}


def poison(given: dict[str, Any], set_attribute: Any = setattr) -> None:
    """Change the gradients of the loop's steps at these positions."""
    step, clip = loop._step, optimizer.clip_gradients
    at: dict[str, Any] = {}

    def stepping(run: loop.Run, now: TrainState, *rest: Any) -> str:
        at.update(position=now.position, mine=run.ranks.rank == given.get("rank", run.ranks.rank))
        return step(run, now, *rest)

    def clipping(model: nn.Module, limit: float) -> torch.Tensor:
        for kind, factor in FACTORS.items():
            if at["mine"] and at["position"] in given.get(kind, ()):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        grad = parameter.grad
                        (grad.to_local() if isinstance(grad, DTensor) else grad).mul_(factor)
        return clip(model, limit)

    set_attribute(loop, "_step", stepping)
    set_attribute(loop, "clip_gradients", clipping)


if __name__ == "__main__":
    poison(json.loads(os.environ["POISON"]))
    main(pretrain.TASK, __doc__)
