"""Parameter and FLOP counts against published figures and against transformers' models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining, BertModel, Qwen2Config, Qwen2ForCausalLM

from training.config import BertShape, Config, ConfigError, Lora, Model
from training.config.counting import (
    adapter_parameters,
    flops_per_token,
    parameters,
    trainable_parameters,
    unlabelled_flops,
)
from training.models import causal
from training.models.causal import build_on_meta

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


def _model(layers: int, hidden: int, heads: int, kv: int, feed_forward: int, vocabulary: int, tied: int) -> Model:
    return Model(
        architecture="llama", vocab_size=vocabulary, hidden_size=hidden, intermediate_size=feed_forward,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
        tie_word_embeddings=bool(tied),
    )  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_equal_the_published_ones(name: str, config: Config) -> None:
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


def test_a_wrong_count_is_an_error_of_the_configuration(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new family whose count is wrong is not worth a restart."""
    monkeypatch.setattr(causal, "parameters", lambda model: 1000)
    with pytest.raises(ConfigError, match=r"[\d,]+ parameters \([\d,]+ per block\), but .* counts 1,000 "):
        build_on_meta(config, "eager")


def test_tied_head_still_multiplies() -> None:
    tied = _model(*PUBLISHED["Llama 3.2 1B"][1:])
    assert flops_per_token(tied, 4096) == 6 * 1_235_814_400 + 12 * 16 * 2048 * 4096


QWEN2: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
BERT_LARGE: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16,
}  # fmt: skip
SHAPE = BertShape(max_position_embeddings=512)
EVERYTHING: tuple[Any, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _on_meta(build: type[nn.Module], config: object) -> nn.Module:
    with torch.device("meta"):
        return build(config)


def _built(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_qwen2_has_biases_and_a_head_of_its_own() -> None:
    """DeepSeek-R1-Distill-Qwen-1.5B: 1,777,088,000 parameters, 233,373,696 more than with a tied head."""
    model = Model(architecture="qwen2", weights="/shared/models/x", **QWEN2)
    assert parameters(model) == 1_777_088_000
    assert _built(_on_meta(Qwen2ForCausalLM, Qwen2Config(**QWEN2))) == 1_777_088_000
    assert parameters(model.model_copy(update={"tie_word_embeddings": True})) == 1_777_088_000 - 151936 * 1536


def test_bert_large_with_its_two_heads() -> None:
    """335,141,888 in the encoder with its pooler (Devlin et al. 2018: 340 M), 336,226,108 with both heads."""
    model = Model(architecture="bert", tie_word_embeddings=True, bert=SHAPE, **BERT_LARGE)
    config = BertConfig(**BERT_LARGE)
    heads = 1024 * 1024 + 1024 + 2 * 1024 + 30522 + 2 * 1024 + 2
    assert _built(_on_meta(BertModel, config)) == 335_141_888
    assert _built(_on_meta(BertForPreTraining, config)) == parameters(model) == 335_141_888 + heads
    untied = model.model_copy(update={"tie_word_embeddings": False})
    assert parameters(untied) == parameters(model) + 30522 * 1024
    looked_up = (512 + 2) * 1024
    assert flops_per_token(model, 128) == 6 * (parameters(model) - looked_up) + 12 * 24 * 1024 * 128


@pytest.mark.parametrize("targets", [EVERYTHING, ("q_proj", "v_proj")])
def test_adapters_are_two_thin_matrices_for_each_layer(targets: tuple[Any, ...]) -> None:
    model = Model(architecture="qwen2", weights="/shared/models/x", **QWEN2)
    lora = Lora(rank=16, alpha=32, target_modules=targets)
    modules = _on_meta(Qwen2ForCausalLM, Qwen2Config(**QWEN2)).named_modules()
    linears = [m for name, m in modules if name.rpartition(".")[2] in targets and isinstance(m, nn.Linear)]
    assert len(linears) == 28 * len(targets)
    expected = sum(16 * (linear.in_features + linear.out_features) for linear in linears)
    assert adapter_parameters(model, lora) == trainable_parameters(model, lora) == expected
    assert trainable_parameters(model) == parameters(model)


def test_a_token_without_a_label_needs_no_head() -> None:
    model = _model(*PUBLISHED["Llama 3.1 8B"][1:])
    assert unlabelled_flops(model) == 6 * 128256 * 4096
    assert unlabelled_flops(model, Lora(rank=16, alpha=32, target_modules=EVERYTHING)) == 4 * 128256 * 4096


def test_a_module_that_is_trained_in_full_costs_six_in_place_of_four() -> None:
    """Its copy in the base does not multiply, and a table of embeddings is only looked up."""
    model, words = _model(*PUBLISHED["Llama 3.1 8B"][1:]), 128256 * 4096
    plain, saving = (
        Lora(rank=16, alpha=32, target_modules=EVERYTHING, modules_to_save=saved)
        for saved in ((), ("lm_head", "embed_tokens"))
    )
    assert flops_per_token(model, 4096, saving) - flops_per_token(model, 4096, plain) == 2 * words
    assert unlabelled_flops(model, saving) - unlabelled_flops(model, plain) == 2 * words


def test_a_frozen_base_costs_four_a_parameter() -> None:
    """LoRA on Llama 3.1 8B at T 4096 is 32.2 GFLOP a token by NVIDIA's count, which halves the attention."""
    model = _model(*PUBLISHED["Llama 3.1 8B"][1:])
    lora = Lora(rank=16, alpha=32, target_modules=EVERYTHING)
    base, attention = 4 * (8_030_261_248 - 128256 * 4096), 12 * 32 * 4096 * 4096
    assert flops_per_token(model, 4096, lora) == base + attention + 6 * 41_943_040
    assert base + attention / 2 == pytest.approx(32.2e9, rel=0.05)
