"""Parameter and FLOP counts against published figures and against what transformers builds."""

from __future__ import annotations

import pytest

from training.config import Config, Model
from training.counting import flops_per_token, parameters
from training.model import build_on_meta

# (published parameters, layers, hidden, heads, kv heads, feed-forward, vocabulary, tied). Architectures: the
# config.json of each model on the Hugging Face hub (meta-llama). Counts follow from them by hand: embedding
# V*d (once more when the head is not tied) + L*(2*d*d + 2*d*d*kv/heads + 3*d*f + 2*d) + d.
PUBLISHED = {
    "Llama 3.2 1B": (1_235_814_400, 16, 2048, 32, 8, 8192, 128256, True),
    "Llama 3.2 3B": (3_212_749_824, 28, 3072, 24, 8, 8192, 128256, True),
    "Llama 3.1 8B": (8_030_261_248, 32, 4096, 32, 8, 14336, 128256, False),
    "Llama 3.1 70B": (70_553_706_496, 80, 8192, 64, 8, 28672, 128256, False),
    "Llama 2 7B": (6_738_415_616, 32, 4096, 32, 32, 11008, 32000, False),
    "Llama 2 13B": (13_015_864_320, 40, 5120, 40, 40, 13824, 32000, False),
    "Llama 2 70B": (68_976_648_192, 80, 8192, 64, 8, 28672, 32000, False),
}


def _model(
    layers: int, hidden: int, heads: int, kv: int, feed_forward: int, vocabulary: int, tied: int
) -> Model:
    return Model(
        architecture="llama", vocab_size=vocabulary, hidden_size=hidden, intermediate_size=feed_forward,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
        tie_word_embeddings=bool(tied),
    )  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts_to_the_unit(name: str, config: Config) -> None:
    published, *shape = PUBLISHED[name]
    model = _model(*shape)
    assert parameters(model) == published
    built = build_on_meta(config.model_copy(update={"model": model}), "eager")
    assert sum(p.numel() for p in built.parameters()) == published
    assert all(p.is_meta for p in built.parameters())


def test_flops_per_token_in_torchtitans_convention() -> None:
    """Llama 3 8B at T 8192 is 57.9 GFLOP a token: 6 x (8.030 - 0.525) G + 12 x 32 x 4096 x 8192."""
    model = _model(*PUBLISHED["Llama 3.1 8B"][1:])
    assert flops_per_token(model, 8192) == 6 * (8_030_261_248 - 128256 * 4096) + 12 * 32 * 4096 * 8192
    assert flops_per_token(model, 8192) == pytest.approx(57.9e9, rel=1e-3)


def test_tied_head_still_multiplies() -> None:
    tied = _model(*PUBLISHED["Llama 3.2 1B"][1:])
    assert flops_per_token(tied, 4096) == 6 * 1_235_814_400 + 12 * 16 * 2048 * 4096
