"""Fine-tuning of adapters on a base with random weights, which need no download: for its speed only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.config import Config
from training.distributed.ranks import Ranks
from training.finetune import Finetune
from training.models import lora
from training.models.causal import CausalLM, materialise, named_parameters
from training.pretrain import Pretrain
from training.run.directory import RunDir
from training.task import Feed, Task, Trainable
from training.trainer import main


class RandomBase(Finetune):
    """Reads whole samples, as pre-training does."""

    def open(self, config: Config, ranks: Ranks, data: Path, run: RunDir, say: Callable[[str], None]) -> Feed:
        return Pretrain().open(config, ranks, data, run, say)

    @torch.no_grad()
    def initialise(self, model: Trainable, config: Config, device: torch.device, ranks: Ranks) -> None:
        assert isinstance(model, CausalLM)
        materialise(model, config, device)
        for name, parameter in named_parameters(model):
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02)
        lora.initialise(model, config.train.seed)

    def origin(self, config: Config) -> dict[str, Any]:
        return {}


TASK: Task = RandomBase()

if __name__ == "__main__":
    main.main(TASK, __doc__)
