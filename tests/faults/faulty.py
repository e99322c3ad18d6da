"""`training.pretrain` with the faults of tests/faults/inside.py in its ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.faults import inside
from training import pretrain
from training.trainer import loop
from training.trainer.main import main
from training.trainer.optimizer import clip_gradients
from training.trainer.state import TrainState


def install() -> None:
    """Change the loop's step, its clipping and os.fsync."""
    step, clip = loop._step, clip_gradients
    at: dict[str, int] = {}

    def stepping(run: loop.Run, now: TrainState, *rest: Any) -> Any:
        at.update(step=now.step + 1, rank=run.ranks.rank)
        inside.before_step(now.step + 1, run.ranks.rank)
        return step(run, now, *rest)

    def clipping(model: nn.Module, limit: float) -> torch.Tensor:
        if inside.poisons(at["step"], at["rank"]):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(float("nan"))
        return clip(model, limit)

    setattr(loop, "_step", stepping)  # noqa: B010 - mypy knows the types of both
    setattr(loop, "clip_gradients", clipping)  # noqa: B010
    inside.prepare(Path(os.environ["TRAINYARD_RUN"]).resolve() / "checkpoints")


if __name__ == "__main__":
    install()
    main(pretrain.TASK, __doc__)
