"""Pre-train BERT on masked words and next sentences: `torchrun -m training.bert --config DIR`.

Reads TRAINYARD_RUN (the run directory) and TRAINYARD_DATA (the datasets prepared for all runs). The run
continues from its newest good checkpoint, whatever number of ranks wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.config import Config
from training.data.indexed_feed import IndexedFeed
from training.device import Device
from training.distributed.ranks import Ranks
from training.models.bert import PretrainingBert, build_on_meta, initialise
from training.prepare import together
from training.prepare.bert import prepare_for, reference, splits_of
from training.run.directory import RunDir
from training.sample import continuations
from training.sample.fill_mask import check_prompts
from training.task import Feed, Task, Trainable
from training.trainer import main
from training.weights import Weights, bert


class Bert:
    """Masked words and next sentences are predicted; initial weights are random or from model.weights."""

    module = "training.bert"
    losses = ("mlm", "nsp")

    def __init__(self) -> None:
        self._weights: Weights | None = None

    def open(self, config: Config, ranks: Ranks, data: Path, run: RunDir, say: Callable[[str], None]) -> Feed:
        self._weights = bert.open_for(config, run, ranks, say)
        tokenizer = self._weights.tokenizer if self._weights else None
        directory = together(ranks, lambda: prepare_for(config, run.data, say, tokenizer, shared=data))
        check_prompts(config.sample.prompts, config, directory)
        return IndexedFeed(*splits_of(config, directory), config, ranks, reference(config, directory))

    def build(self, config: Config, device: Device) -> PretrainingBert:
        return build_on_meta(config, device.attention)

    def initialise(self, model: Trainable, config: Config, device: torch.device, ranks: Ranks) -> None:
        assert isinstance(model, PretrainingBert)
        if self._weights is None:
            initialise(model, config, device)
        else:
            bert.load(model, self._weights, config, device)

    def origin(self, config: Config) -> dict[str, Any]:
        return self._weights.origin if self._weights else {}

    def samples(self, config: Config, directory: RunDir) -> list[dict[str, str]]:
        """Each prompt with the words that the model predicts at its [MASK]s."""
        wanted = config.sample
        texts = continuations(directory, wanted.prompts, wanted.max_new_tokens, wanted.temperature, config.train.seed)
        return [{"prompt": prompt, "text": text} for prompt, text in texts]


TASK: Task = Bert()

if __name__ == "__main__":
    main.main(TASK, __doc__)
