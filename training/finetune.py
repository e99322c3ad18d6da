"""Fine-tune a causal language model: `torchrun -m training.finetune --config DIR`.

Starts from `model.weights`: a directory, a pinned revision of the hub or another run. Trains adapters if the
configuration has a section `lora`, else every weight. Reads TRAINYARD_RUN (the run directory) and
TRAINYARD_DATA (the datasets prepared for all runs). The run continues from its newest good checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.config import Config
from training.data.examples.example_dataset import ExampleDataset
from training.data.examples.prepare_examples import prepare_examples
from training.data.indexed_feed import IndexedFeed
from training.device import Device
from training.distributed.ranks import Ranks
from training.models import lora
from training.models.causal import CausalLM, build_on_meta
from training.prepare import together
from training.prepare.examples import settings_of, tokenizer_of
from training.run.directory import RunDir
from training.sample import continuations
from training.task import Feed, Task, Trainable
from training.trainer import main
from training.weights import Weights, open_weights


class Finetune:
    """Starts from published or another run's weights; the assistant's tokens are predicted."""

    module = "training.finetune"
    losses = ("loss",)

    def __init__(self) -> None:
        self._weights: Weights | None = None

    @property
    def weights(self) -> Weights:
        """The base, after `open`."""
        assert self._weights is not None
        return self._weights

    def open(self, config: Config, ranks: Ranks, data: Path, run: RunDir, say: Callable[[str], None]) -> Feed:
        self._weights = open_weights(config, run, ranks, say)
        say(lora.describe(config))
        settings = settings_of(config, tokenizer_of(config, run, ranks, say))
        directory = together(ranks, lambda: prepare_examples(settings, run.data, say, shared=data))
        train = ExampleDataset.open(directory, "train", config.sequence_length)
        heldout = ExampleDataset.open(directory, "heldout", config.sequence_length)
        reference = {"unigram_nats": heldout.unigram_nats, "ln_vocab": math.log(config.model.vocab_size)}
        return IndexedFeed(train, heldout, config, ranks, reference)

    def build(self, config: Config, device: Device) -> CausalLM:
        model = build_on_meta(config, device.attention)
        if config.lora is not None:
            lora.adapt(model, config, device.precision)
        return model

    def initialise(self, model: Trainable, config: Config, device: torch.device, ranks: Ranks) -> None:
        self.weights.load(model, config, device)

    def origin(self, config: Config) -> dict[str, Any]:
        return self.weights.origin

    def samples(self, config: Config, directory: RunDir) -> list[dict[str, str]]:
        """Each prompt with the base's text (`before`) and the trained model's."""
        wanted = config.sample
        how = wanted.prompts, wanted.max_new_tokens, wanted.temperature, config.train.seed
        before = continuations(directory, *how, base=True)
        after = continuations(directory, *how)
        return [
            {"prompt": prompt, "before": old, "text": new}
            for (prompt, old), (_, new) in zip(list(before), after, strict=True)
        ]


TASK: Task = Finetune()

if __name__ == "__main__":
    main.main(TASK, __doc__)
