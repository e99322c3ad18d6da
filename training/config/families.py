"""The families of models: one table of what distinguishes them. It needs neither torch nor transformers.

A family is named as `model_type` in a config.json. To add one, add a row: tests/training/models compares each
row with transformers' own class (parameters, linear layers, defaults, logits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """What distinguishes a family. Sizes are names, which training/config/counting.py turns into numbers."""

    config: str
    """Name of transformers' configuration class."""

    model: str
    """Name of transformers' model class."""

    linears: Mapping[str, tuple[str, str]]
    """Inputs and outputs of each linear layer of a block: what LoRA can adapt."""

    norms: Mapping[str, str] = field(default_factory=dict)
    """Width of each norm of a block."""

    biased: tuple[str, ...] = ()
    """The linear layers that have a bias."""

    keys: tuple[str, ...] = ()
    """Keys of the section `model` that only some families have."""

    needs: tuple[str, ...] = ()
    """Those of the keys that the family cannot do without."""

    norm_start: float = 1.0
    """Initial value of the norms' weights; 0 where the model multiplies by 1 + weight."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that a config.json may leave out, and what transformers takes then."""

    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys of config.json that have no key here, with the values that are supported, the usual one first."""


_MLP = {"gate_proj": ("hidden", "inner"), "up_proj": ("hidden", "inner"), "down_proj": ("inner", "hidden")}
_ATTENTION = {
    "q_proj": ("hidden", "queries"), "k_proj": ("hidden", "narrow"), "v_proj": ("hidden", "narrow"),
    "o_proj": ("queries", "hidden"),
}  # fmt: skip
_TWO_NORMS = {"input_layernorm": "hidden", "post_attention_layernorm": "hidden"}
_HEAD_NORMS = {"q_norm": "head", "k_norm": "head"}
_SILU: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",)}
_NO_BIAS: dict[str, tuple[Any, ...]] = {"attention_bias": (False,)}
_ONE_DIRECTION: dict[str, tuple[Any, ...]] = {"use_bidirectional_attention": (None, False)}
_TANH: tuple[Any, ...] = ("gelu_pytorch_tanh", "gelu", None)  # transformers reads the old `gelu` as tanh's
_COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False}

# Keys of the section `model` that only some families have. rope_scaling is the older of them: it is also
# written where it is null, and the others are not.
OPTIONAL = (
    "head_dim", "sliding_window", "sliding_window_pattern", "rope_local_base_freq", "num_local_experts",
    "num_experts_per_tok", "router_aux_loss_coef",
)  # fmt: skip

# Source of classes, defaults and fixed properties: transformers 5.23, models/*/configuration_*.py and
# modeling_*.py; the tests compare them with the installed release.
FAMILIES: dict[str, Family] = {
    "llama": Family(
        "LlamaConfig", "LlamaForCausalLM", _ATTENTION | _MLP, _TWO_NORMS,
        keys=("head_dim", "rope_scaling"), defaults=_COMMON, fixed=_SILU | _NO_BIAS | {"mlp_bias": (False,)},
    ),
    "qwen2": Family(
        "Qwen2Config", "Qwen2ForCausalLM", _ATTENTION | _MLP, _TWO_NORMS, ("q_proj", "k_proj", "v_proj"),
        keys=("rope_scaling",), defaults=_COMMON | {"num_key_value_heads": 32},
        fixed=_SILU | {"use_sliding_window": (False,)},
    ),
    "bert": Family(
        "BertConfig", "BertForPreTraining",
        {
            **dict.fromkeys(("query", "key", "value", "attention.output"), ("hidden", "hidden")),
            "intermediate": ("hidden", "inner"), "output": ("inner", "hidden"),
        },
        defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "type_vocab_size": 2},
        fixed={"hidden_act": ("gelu",), "position_embedding_type": ("absolute",)},
    ),
    "qwen3": Family(
        "Qwen3Config", "Qwen3ForCausalLM", _ATTENTION | _MLP, _TWO_NORMS | _HEAD_NORMS,
        keys=("head_dim", "rope_scaling"), defaults=_COMMON | {"head_dim": 128, "num_key_value_heads": 32},
        fixed=_SILU | _NO_BIAS | {"use_sliding_window": (False,)},
    ),
    "mistral": Family(
        "MistralConfig", "MistralForCausalLM", _ATTENTION | _MLP, _TWO_NORMS,
        keys=("head_dim", "rope_scaling", "sliding_window"),
        defaults=_COMMON | {"sliding_window": 4096, "num_key_value_heads": 8}, fixed=_SILU,
    ),
    "gemma": Family(
        "GemmaConfig", "GemmaForCausalLM", _ATTENTION | _MLP, _TWO_NORMS, norm_start=0.0,
        keys=("head_dim", "rope_scaling"),
        defaults=_COMMON | {"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 16},
        fixed=_NO_BIAS | _ONE_DIRECTION | {"hidden_act": _TANH, "hidden_activation": (_TANH[0], None)},
    ),
    "gemma3_text": Family(
        "Gemma3TextConfig", "Gemma3ForCausalLM", _ATTENTION | _MLP,
        {
            **_TWO_NORMS, "pre_feedforward_layernorm": "hidden", "post_feedforward_layernorm": "hidden",
            **_HEAD_NORMS,
        },
        norm_start=0.0,
        keys=("head_dim", "sliding_window", "sliding_window_pattern", "rope_local_base_freq"),
        needs=("sliding_window", "sliding_window_pattern", "rope_local_base_freq"),
        defaults=_COMMON | {
            "tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4, "rope_theta": 1000000.0,
            "sliding_window": 4096, "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0,
        },
        fixed=_NO_BIAS | _ONE_DIRECTION | {
            "hidden_activation": ("gelu_pytorch_tanh",),
            "final_logit_softcapping": (None,), "attn_logit_softcapping": (None,),
        },
    ),
    "phi3": Family(
        "Phi3Config", "Phi3ForCausalLM",
        {
            "qkv_proj": ("hidden", "queries+2*narrow"), "o_proj": ("queries", "hidden"),
            "gate_up_proj": ("hidden", "2*inner"), "down_proj": ("inner", "hidden"),
        },
        _TWO_NORMS, keys=("sliding_window",),
        defaults=_COMMON | {"rms_norm_eps": 1e-5, "sliding_window": None}, fixed=_SILU | _NO_BIAS,
    ),
    "olmo2": Family(
        "Olmo2Config", "Olmo2ForCausalLM", _ATTENTION | _MLP,
        {
            "post_attention_layernorm": "hidden", "post_feedforward_layernorm": "hidden",
            "q_norm": "queries", "k_norm": "narrow",
        },
        keys=("rope_scaling",), defaults=_COMMON | {"rms_norm_eps": 1e-5}, fixed=_SILU | _NO_BIAS,
    ),
    "mixtral": Family(
        "MixtralConfig", "MixtralForCausalLM", _ATTENTION, _TWO_NORMS,
        keys=(
            "head_dim", "rope_scaling", "sliding_window", "num_local_experts", "num_experts_per_tok",
            "router_aux_loss_coef",
        ),
        needs=("num_local_experts", "num_experts_per_tok", "router_aux_loss_coef"),
        defaults=_COMMON | {
            "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": None, "num_local_experts": 8,
            "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001, "num_key_value_heads": 8,
        },
        fixed=_SILU | {"router_jitter_noise": (0.0,)},
    ),
}  # fmt: skip

OUTSIDE = ("embed_tokens", "lm_head", "norm")  # modules outside the blocks that LoRA can train in full


def _names(*parts: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part))


_CAUSAL = [family for name, family in FAMILIES.items() if name != "bert"]
LINEARS = _names(*(family.linears for family in _CAUSAL))
MODULES = _names(dict.fromkeys(OUTSIDE), *(family.norms for family in _CAUSAL), dict.fromkeys(LINEARS))
