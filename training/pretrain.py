"""Pre-train a causal language model: `torchrun -m training.pretrain --config DIR`.

Reads TRAINYARD_RUN (the run directory) and TRAINYARD_DATA (the datasets prepared for all runs). The run
continues from its newest good checkpoint, whatever number of ranks wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.config import Config
from training.data.indexed_feed import IndexedFeed
from training.data.stream.open import open_stream
from training.data.token_dataset import TokenDataset
from training.device import Device
from training.distributed.ranks import Ranks
from training.models.causal import CausalLM, build_on_meta, initialise
from training.prepare import prepare_for, together
from training.run.directory import RunDir
from training.sample import continuations
from training.task import Feed, Task, Trainable
from training.trainer import main


class Pretrain:
    """Random initial weights; every token's next token in its document is predicted."""

    module = "training.pretrain"
    losses = ("loss",)

    def open(self, config: Config, ranks: Ranks, data: Path, run: RunDir, say: Callable[[str], None]) -> Feed:
        directory = together(ranks, lambda: prepare_for(config, run.data, say, shared=data))
        if config.data.stream is not None:
            return open_stream(config, directory, ranks, say)
        train = TokenDataset.open(directory, "train", config.sequence_length)
        heldout = TokenDataset.open(directory, "heldout", config.sequence_length)
        reference = {"unigram_nats": heldout.unigram_nats, "ln_vocab": math.log(config.model.vocab_size)}
        return IndexedFeed(train, heldout, config, ranks, reference)

    def build(self, config: Config, device: Device) -> CausalLM:
        return build_on_meta(config, device.attention)

    def initialise(self, model: Trainable, config: Config, device: torch.device, ranks: Ranks) -> None:
        assert isinstance(model, CausalLM)
        initialise(model, config, device)

    def origin(self, config: Config) -> dict[str, Any]:
        return {}

    def samples(self, config: Config, directory: RunDir) -> list[dict[str, str]]:
        wanted = config.sample
        texts = continuations(directory, wanted.prompts, wanted.max_new_tokens, wanted.temperature, config.train.seed)
        return [{"prompt": prompt, "text": text} for prompt, text in texts]


TASK: Task = Pretrain()

if __name__ == "__main__":
    main.main(TASK, __doc__)
