"""Each family of the registry against transformers: parameters, layers, logits, loss, published keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.weights.bases import configuration
from tools.plan.layout import Layout
from training.config import Config, ConfigError, Device, Lora
from training.config.counting import (
    active_parameters,
    flops_per_token,
    linear_shapes,
    norm_widths,
    parameters,
)
from training.config.families import FAMILIES
from training.device import resolve
from training.models.causal import CausalLM, build_on_meta, hf_config, initialise, named_parameters
from training.models.lora import adapt
from training.models.published import differences, read_published

CPU = torch.device("cpu")
# Tiny models that have what is special about their family: head sizes of their own, windows shorter than the
# 24 tokens of the tests, experts.
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 24},
    "mistral": {"head_dim": 24, "sliding_window": 7, "tie_word_embeddings": False},
    "gemma": {"head_dim": 24},
    "gemma3_text": {
        "head_dim": 24, "num_hidden_layers": 3, "sliding_window": 7, "sliding_window_pattern": 2,
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    },
    "phi3": {"sliding_window": 7, "tie_word_embeddings": False},
    "olmo2": {"tie_word_embeddings": False},
    "mixtral": {
        "num_local_experts": 3, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02,
        "intermediate_size": 32, "tie_word_embeddings": False,
    },
}  # fmt: skip


def tiny(family: str, **more: Any) -> Config:
    return configuration(None, architecture=family, **TINY[family], **more)


def built(config: Config, attention: str = "eager") -> CausalLM:
    model = build_on_meta(config, attention)
    initialise(model, config, CPU)
    return model


def batch(documents: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows of the given document lengths: tokens, positions, documents."""
    tokens = torch.randint(0, 515, (2, sum(documents)), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(n) for n in documents]).expand(2, -1)
    ids = torch.cat([torch.full((n,), i) for i, n in enumerate(documents)]).expand(2, -1)
    return tokens, positions.contiguous(), ids.contiguous()


def theirs(config: Config, model: CausalLM) -> Any:
    """transformers' own model with the same weights, after a round trip of its configuration."""
    described = hf_config(config).to_dict()
    kind = getattr(transformers, config.model.family.config)
    copy = getattr(transformers, config.model.family.model)(kind.from_dict(described, attn_implementation="eager"))
    copy.load_state_dict(model.hf.state_dict())
    return copy.eval()


def test_every_causal_family_is_tested() -> None:
    assert set(TINY) == set(FAMILIES) - {"bert"}


@pytest.mark.parametrize("family", TINY)
def test_parameters_and_layers_are_those_of_transformers(family: str) -> None:
    """The registry's linear layers are the modules of that kind in a block, and its norms are the others."""
    config = tiny(family)
    model = build_on_meta(config, "eager")  # counts the parameters
    block = model.blocks()[0]
    linears = {name.rpartition(".")[2]: m for name, m in block.named_modules() if isinstance(m, nn.Linear)}
    shapes = {name: (linear.in_features, linear.out_features) for name, linear in linears.items()}
    assert shapes == linear_shapes(config.model)
    assert {n for n, m in linears.items() if m.bias is not None} == set(config.model.family.biased)
    norms = {n.rpartition(".")[2]: m.weight.numel() for n, m in block.named_modules() if n.endswith("norm")}
    assert norms == norm_widths(config.model)


@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_are_those_of_transformers(family: str, attention: str) -> None:
    config = tiny(family)
    model = built(config, attention).eval()
    tokens, positions, documents = batch([24])
    with torch.no_grad():
        ours = model.logits(tokens, positions, documents)
        expected = theirs(config, model)(tokens).logits
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "phi3"])
def test_control_a_window_changes_the_logits(family: str) -> None:
    config = tiny(family)
    wide = config.model.model_copy(update={"sliding_window": 24})
    tokens, positions, documents = batch([24])
    models = (built(config), built(config.model_copy(update={"model": wide})))
    with torch.no_grad():
        narrow, other = (model.eval().logits(tokens, positions, documents) for model in models)
    assert torch.equal(narrow[:, :7], other[:, :7])
    assert not torch.allclose(narrow[:, 7:], other[:, 7:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", TINY)
def test_a_packed_document_has_the_same_logits_as_alone(family: str) -> None:
    model = built(tiny(family)).eval()
    tokens, positions, documents = batch([10, 14])
    with torch.no_grad():
        packed = model.logits(tokens, positions, documents)
        for part in (slice(0, 10), slice(10, 24)):
            alone = model.logits(tokens[:, part], positions[:, part], documents[:, part])
            torch.testing.assert_close(packed[:, part], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", TINY)
def test_the_first_loss_and_its_gradients(family: str) -> None:
    """The loss is near ln(vocabulary) and transformers' own; every parameter has its gradient."""
    config = tiny(family)
    model = built(config)
    tokens, positions, documents = batch([24])
    labels = torch.cat([tokens[:, 1:], torch.full((2, 1), -100)], dim=1)
    loss = model(tokens, labels, positions, documents).squeeze() / (labels != -100).sum()
    loss.backward()
    copy = theirs(config, model)
    routed = config.model.num_local_experts is not None
    expected = copy(tokens, labels=tokens, **({"output_router_logits": True} if routed else {})).loss
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    gradients = {name: p.grad for name, p in named_parameters(model)}
    for name, parameter in copy.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-6)
    balance = 0.02 * 2 if routed else 0.0  # with even routing: coefficient x experts per token
    assert loss.item() - balance == pytest.approx(math.log(515), rel=0.03)


def test_held_out_losses_are_without_the_balancing_loss() -> None:
    model = built(tiny("mixtral"))
    tokens, positions, documents = batch([24])
    trained = model(tokens, tokens, positions, documents)
    plain = model.eval()(tokens, tokens, positions, documents)
    assert (trained - plain).item() / tokens.numel() == pytest.approx(0.02 * 2, rel=0.1)


@pytest.mark.parametrize("family", TINY)
def test_adapters_are_on_the_linear_layers(family: str) -> None:
    config = tiny(family)
    lora = Lora(rank=2, alpha=4, target_modules=tuple(config.model.family.linears), modules_to_save=("norm",))
    adapted = build_on_meta(config, "eager")
    adapt(adapted, config.model_copy(update={"lora": lora}), "fp32")  # counts the trained parameters
    pairs = sum(name.endswith("lora_A.default.weight") for name, _ in named_parameters(adapted))
    assert pairs == len(config.model.family.linears) * config.model.num_hidden_layers


# Counts and the keys of each config.json that are not the family's defaults. Sources: config.json of
# Qwen/Qwen3-0.6B, mistralai/Mistral-7B-v0.1, google/gemma-3-1b-pt, google/gemma-2b, microsoft/phi-4,
# allenai/OLMo-2-1124-7B, HuggingFaceTB/SmolLM2-135M and mistralai/Mixtral-8x7B-v0.1 on the Hugging Face hub.
# The counts are also published, seen on 2026-11-25: keras-hub's presets (gemma_2b_en, gemma3_1b, mixtral_8_7b_en),
# the GGUF header general.parameter_count of Phi-4 and Mistral 7B, the hub's safetensors total of OLMo 2 7B, and
# what transformers counts in public tests and logs of Qwen3 0.6B and SmolLM2 135M.
# The shapes are (layers, hidden, heads, key/value heads, feed-forward, vocabulary).
PUBLISHED: dict[str, tuple[int, str, tuple[int, ...], dict[str, Any]]] = {
    "Qwen3 0.6B": (596_049_920, "qwen3", (28, 1024, 16, 8, 3072, 151936), {"tie_word_embeddings": True}),
    "Mistral 7B v0.1": (7_241_732_096, "mistral", (32, 4096, 32, 8, 14336, 32000), {}),
    "Gemma 3 1B": (
        999_885_952, "gemma3_text", (26, 1152, 4, 1, 6912, 262144), {"head_dim": 256, "sliding_window": 512},
    ),
    "Gemma 2B": (2_506_172_416, "gemma", (18, 2048, 8, 1, 16384, 256000), {"head_dim": 256}),
    "Phi-4": (14_659_507_200, "phi3", (40, 5120, 40, 10, 17920, 100352), {}),
    "OLMo 2 7B": (7_298_617_344, "olmo2", (32, 4096, 32, 32, 11008, 100352), {}),
    "SmolLM2 135M": (134_515_008, "llama", (30, 576, 9, 3, 1536, 49152), {"tie_word_embeddings": True}),
    "Mixtral 8x7B": (46_702_792_704, "mixtral", (32, 4096, 32, 8, 14336, 32000), {}),
}  # fmt: skip
SHAPE = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size",
)  # fmt: skip


def published(name: str) -> dict[str, Any]:
    _, family, shape, more = PUBLISHED[name]
    return {"model_type": family, **dict(zip(SHAPE, shape, strict=True)), **more}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    """To the unit: by the registry from config.json, and in transformers' model on meta."""
    config = configuration(None, **{**NOTHING, **read_published(published(name))})
    assert parameters(config.model) == PUBLISHED[name][0]
    assert sum(p.numel() for p in build_on_meta(config, "eager").parameters()) == PUBLISHED[name][0]


NOTHING = {"tie_word_embeddings": False}


def test_a_mixture_computes_with_its_active_parameters() -> None:
    """Mixtral 8x7B: 12.9 billion of 46.7 billion (Jiang et al. 2024, arXiv 2401.04088, section 2)."""
    model = configuration(None, **read_published(published("Mixtral 8x7B"))).model
    assert active_parameters(model) == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336 == 12_879_925_248
    table, attention = 32000 * 4096, 12 * 32 * 4096 * 4096
    assert flops_per_token(model, 4096) == 6 * (12_879_925_248 - table) + attention


def test_a_window_bounds_the_flop_of_attention() -> None:
    model = configuration(None, **read_published(published("Mistral 7B v0.1"))).model
    assert model.sliding_window == 4096
    long, short = (flops_per_token(model, length) for length in (16384, 4096))
    assert long == short


@pytest.mark.parametrize("family", TINY)
def test_a_config_json_is_read_as_transformers_reads_it(family: str) -> None:
    """What a file leaves out has transformers' default; what transformers writes is read as it was."""
    kind = getattr(transformers, FAMILIES[family].config)
    read = read_published({"model_type": family, **dict.fromkeys(SHAPE[:3] + SHAPE[4:], 64)})
    default = kind(**dict.fromkeys(SHAPE[:3] + SHAPE[4:], 64))
    for key in set(read) - {"architecture", "rope_theta", "rope_scaling", "sliding_window_pattern",
                            "rope_local_base_freq"}:  # fmt: skip
        assert read[key] == getattr(default, key), key
    rope = default.rope_parameters
    assert read["rope_theta"] == rope.get("full_attention", rope)["rope_theta"]
    if family == "gemma3_text":
        assert read["rope_local_base_freq"] == rope["sliding_attention"]["rope_theta"]
        assert read["sliding_window_pattern"] == default.layer_types.index("full_attention") + 1
    for key, allowed in FAMILIES[family].fixed.items():
        assert getattr(default, key, allowed[0]) in allowed, key
    config = tiny(family)
    written = hf_config(config).to_dict()
    assert differences(read_published(written), config.model) == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "vision": ({"model_type": "gemma3", "vision_config": {"a": 1}}, "vision_config: the model has a vision"),
    "latent attention": ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "multi-head latent attention"),
    "state space": ({"model_type": "zamba2", "mamba_d_state": 64}, "mamba_d_state: the model has state"),
    "no positions": ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "smollm3, .* have no rotary positions"),
    "experts": ({"model_type": "qwen2_moe", "num_experts": 60}, "qwen2_moe, .* another kind than Mixtral's"),
    "remote code": ({"model_type": "mine", "auto_map": {"AutoConfig": "c.C"}}, "auto_map: .* never run"),
    "no type": ({"model_type": None}, "model_type is null, which is not supported; supported are llama, "),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config: the weights are quantized"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act is gelu, but only silu is supported"),
    "partial rotary": ({"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75, but only 1.0"),
    "alternating": ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types names sliding_a"),
    "missing": ({"hidden_size": None}, "not a mistral configuration: hidden_size is missing"),
    "type": ({"vocab_size": "many"}, "not a mistral configuration: vocab_size is many, which is not a whole"),
    "soft cap": (
        {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, but",
    ),
    "pattern": (
        {"model_type": "gemma3_text", "layer_types": ["full_attention", "sliding_attention"]},
        "layer_types: only full attention in every n-th layer is supported",
    ),
    "scale": (
        {"model_type": "gemma3_text", "query_pre_attn_scalar": 168}, "query_pre_attn_scalar is 168, but only",
    ),
    **{
        f"head of {family}": (
            {"model_type": family, "head_dim": 24, "sliding_window": None},
            "head_dim is 24, but only hidden_size / num_attention_heads, 128, is supported",
        )
        for family in FAMILIES if "head_dim" not in FAMILIES[family].keys
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_with_its_key(name: str) -> None:
    changes, message = REFUSED[name]
    read_published(published("Mistral 7B v0.1"))  # the control
    with pytest.raises(ConfigError, match=message):
        read_published({**published("Mistral 7B v0.1"), **changes})


@pytest.mark.parametrize("family", TINY)
def test_a_head_dim_is_read_or_refused_as_transformers_takes_it(family: str) -> None:
    """Every family accepts the one that follows from the sizes; only those that have the key take another."""
    usual = {**published("Mistral 7B v0.1"), "model_type": family}
    for head in (None, 128):
        assert "head_dim" not in read_published({**usual, "head_dim": head})
    if "head_dim" in FAMILIES[family].keys:
        assert read_published({**usual, "head_dim": 24})["head_dim"] == 24
    else:
        ours = linear_shapes(tiny(family).model)
        described = hf_config(tiny(family))
        described.head_dim = 24
        kind = getattr(transformers, FAMILIES[family].model)
        with torch.device("meta"):
            linears = [(n, m) for n, m in kind(described).named_modules() if isinstance(m, nn.Linear)]
        shapes = {name.rpartition(".")[2]: (linear.in_features, linear.out_features) for name, linear in linears}
        assert {name: shapes[name] for name in ours} != ours, "control"


def test_a_section_of_an_older_checkpoint_is_read_and_written_unchanged(config: Config) -> None:
    """Keys of other families do not appear, so the digests of older configurations stay."""
    dumped = config.model.model_dump(mode="json")
    assert list(dumped) == [
        "architecture", "weights", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling",
        "tie_word_embeddings", "attention_dropout", "initializer_range", "bert",
    ]  # fmt: skip
    assert type(config.model).model_validate(dumped) == config.model


def test_blocks_with_experts_are_not_compiled() -> None:
    """Their routing is recorded by hooks, at which a whole compiled block would break.

    The hardware's files ask for compiled blocks, for models of all families.
    """
    for how in ("on", "auto"):
        assert not resolve(tiny("mixtral").model_copy(update={"device": Device(compile=how)})).compile


class Grouped(TorchDispatchMode):
    """Keeps the formats of what the products of experts multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "grouped_mm" in str(function):
            self.formats |= {one.dtype for one in args[:2]}
        return function(*args, **(kwargs or {}))


def test_experts_multiply_in_autocasts_precision() -> None:
    """The loss and the gradients, in fp32, stay near those of products in fp32."""
    tokens, positions, documents = batch([24])
    found = {}
    for half in (False, True):
        model = built(tiny("mixtral"))
        with Grouped() as products, torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(tokens, tokens, positions, documents)
            loss.backward()
        assert products.formats == {torch.bfloat16 if half else torch.float32}
        found[half] = (loss, model.hf.model.layers[0].mlp.experts.down_proj.grad)
    for rounded, whole in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(rounded, whole, rtol=2e-2, atol=2e-2 * whole.abs().max().item())


def test_blocks_with_experts_are_planned_without_compiling() -> None:
    config = tiny("mixtral").model_copy(update={"device": Device(type="cpu", precision="bf16")})
    device, planned = resolve(config), Layout.of(config, 1, 1)
    assert (device.attention, planned.attention, planned.kernels) == ("sdpa", "sdpa", "eager")
    dense = tiny("mistral").model_copy(update={"device": config.device})
    assert Layout.of(dense, 1, 1).kernels == "compiled", "control"
