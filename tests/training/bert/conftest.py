"""A tiny BERT, a corpus of numbered sentences, and its prepared data."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from training.config import Config, load_texts
from training.data.bert.prepare_pairs import prepare_pairs

MODEL = """
model: {{architecture: bert, vocab_size: 512, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,
        num_attention_heads: 4, tie_word_embeddings: true, attention_dropout: 0.1,
        bert: {{max_position_embeddings: 64, hidden_dropout: 0.1}}}}
sequence_length: 32
masking: {{most: 6}}
data: {{source: {source}, heldout_fraction: 0.1}}
train: {{seed: 7, steps: 12, global_batch_size: 8, learning_rate: 5.0e-3, schedule: linear, warmup_steps: 2,
        min_learning_rate_ratio: 0.0, weight_decay: 0.01, beta2: 0.999, eval_every: 6, eval_sequences: 8}}
"""
HARDWARE = "device: {type: cpu, precision: fp32, attention: eager, compile: 'off'}\n"
CELL = "parallel: {micro_batch_size: 2, sharding: ddp}\ncheckpoint: {every: 5, keep: 2}\n"
LENGTH, VOCABULARY = 32, 512


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of seeded sentences; sentence s of document d begins with a unique word: `q<d>x<s>q`."""
    directory = tmp_path_factory.mktemp("sentences")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(150)]
    for number in range(60):
        lines = (
            f"q{number}x{line}q {' '.join(draw.choices(words, k=draw.randint(2, 8)))}."
            for line in range(draw.randint(1, 24))
        )
        (directory / f"{number:03d}.txt").write_text("\n".join(lines), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def texts(corpus: Path) -> dict[str, tuple[str, str]]:
    """The tiny configuration as `{layer: (file name, text)}`."""
    return {
        "model": ("model.yaml", MODEL.format(source=corpus)),
        "hardware": ("hardware.yaml", HARDWARE),
        "cell": ("cell.yaml", CELL),
    }


@pytest.fixture(scope="session")
def config(texts: dict[str, tuple[str, str]]) -> Config:
    return load_texts(texts)


@pytest.fixture(scope="session")
def dataset(corpus: Path, data_root: Path) -> Path:
    """The prepared corpus of the tiny configuration."""
    return prepare_pairs(str(corpus), "text", 0.1, "train", VOCABULARY, LENGTH, data_root, lambda line: None)
