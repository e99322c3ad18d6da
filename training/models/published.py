"""Reads a published config.json as keys of the section `model`. It needs neither torch nor transformers.

What this package cannot train is refused with the key that says so. Code that the file names is never run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from training.config import ConfigError, Model
from training.config.families import FAMILIES, OPTIONAL, Family

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_BERT = ("max_position_embeddings", "type_vocab_size", "layer_norm_eps")
# What a config.json of an unsupported model contains, and what it means.
_REASONS = {
    "vision_config": "the model has a vision tower",
    "audio_config": "the model has an audio tower",
    "text_config": "the model has other parts than a text decoder",
    "kv_lora_rank": "the model has multi-head latent attention",
    "ssm_cfg": "the model has state-space layers",
    "mamba_d_state": "the model has state-space layers",
    "state_size": "the model has state-space layers",
    "no_rope_layers": "some layers have no rotary positions",
    "partial_rotary_factor": "only a part of each head is rotated",
    "final_logit_softcapping": "the logits are soft-capped",
    "num_experts": "its experts are of another kind than Mixtral's",
    "num_local_experts": "its experts are of another kind than Mixtral's",
    "n_embd": "the keys are GPT-2's",
    "auto_map": "the model may need code of its own, which is never run",
}


def read_published(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the section `model` that a config.json describes, without those about training.

    head_dim is missing where it is hidden_size / num_attention_heads.

    Raises:
        ConfigError: the model is not supported, with the key; or a key is missing or has a wrong type.
    """
    name = values.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(_unknown(name, values))
    if values.get("quantization_config"):
        raise ConfigError("quantization_config: the weights are quantized; use a revision in bf16, fp16 or fp32")
    family = FAMILIES[name]
    if unsupported := _unsupported(values, family):
        raise ConfigError("; ".join(unsupported))
    found: dict[str, Any] = {"architecture": name, **{key: _whole(values, key, name) for key in _SIZES}}
    found["tie_word_embeddings"] = bool(_get(values, "tie_word_embeddings", family))
    if name == "bert":
        return {**found, "bert": {key: _get(values, key, family) for key in _BERT}}
    heads = found["num_attention_heads"]
    given = values.get("num_key_value_heads", family.defaults.get("num_key_value_heads"))
    found["num_key_value_heads"] = heads if given is None else given
    found["rms_norm_eps"] = _get(values, "rms_norm_eps", family)
    found |= {key: value for key in OPTIONAL if (value := _optional(values, key, family)) is not None}
    found |= _rope(values, family)
    if found.get("head_dim") and found["head_dim"] * heads == found["hidden_size"]:
        del found["head_dim"]
    return found


def _unknown(name: Any, values: Mapping[str, Any]) -> str:
    known = ", ".join(FAMILIES)
    reason = next((f" ({key}: {text})" for key, text in _REASONS.items() if values.get(key)), "")
    return f"model_type is {_said(name)}, which is not supported{reason}; supported are {known}"


def _unsupported(values: Mapping[str, Any], family: Family) -> list[str]:
    """What the file says otherwise than the family's fixed properties."""
    found = [
        f"{key} is {_said(values[key])}, but only {_said(allowed[0])} is supported"
        for key, allowed in family.fixed.items()
        if key in values and values[key] not in allowed
    ]
    rope = _rope_values(values)
    share = rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
    if share not in (None, 1.0):
        found.append(f"partial_rotary_factor is {_said(share)}, but only 1.0 is supported")
    kinds = values.get("layer_types")
    if "sliding_window_pattern" not in family.keys and set(_list(kinds)) - {"full_attention"}:
        other = sorted(map(str, set(_list(kinds)) - {"full_attention"}))
        found.append(f"layer_types names {', '.join(other)}, but only full_attention is supported")
    if "head_dim" not in family.keys and (found_head := _other_head(values)):
        found.append(found_head)
    scale, head = values.get("query_pre_attn_scalar"), values.get("head_dim", family.defaults.get("head_dim"))
    if scale is not None and scale != head:
        found.append(f"query_pre_attn_scalar is {_said(scale)}, but only head_dim, {_said(head)}, is supported")
    return found


def _other_head(values: Mapping[str, Any]) -> str | None:
    """What is wrong with the head_dim in a config.json of a family without that key here: transformers honours it."""
    head, hidden, heads = (values.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if head is None or not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        return None
    if isinstance(head, int) and head * heads == hidden:
        return None
    return f"head_dim is {_said(head)}, but only hidden_size / num_attention_heads, {hidden / heads:g}, is supported"


def _optional(values: Mapping[str, Any], key: str, family: Family) -> Any:
    if key not in family.keys:
        return None
    if key == "sliding_window_pattern" and _list(values.get("layer_types")):
        return _pattern(_list(values["layer_types"]))
    local = _rope_values(values).get("sliding_attention")
    if key == "rope_local_base_freq" and isinstance(local, dict) and "rope_theta" in local:
        return local["rope_theta"]
    return values.get(key, family.defaults.get(key))


def _pattern(kinds: list[Any]) -> int:
    """The number n of layer_types in which every n-th layer has full attention."""
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    wanted = ["sliding_attention" if layer % every else "full_attention" for layer in range(1, len(kinds) + 1)]
    if kinds != wanted:
        raise ConfigError("layer_types: only full attention in every n-th layer is supported")
    return every


def _rope(values: Mapping[str, Any], family: Family) -> dict[str, Any]:
    rope = _rope_values(values)
    if isinstance(rope.get("full_attention"), dict):
        rope = rope["full_attention"]
    rest = {k: v for k, v in rope.items() if k not in ("type", "rope_theta", "partial_rotary_factor")}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", values.get("rope_theta", family.defaults["rope_theta"]))
    rest.pop("sliding_attention", None)
    return {"rope_theta": theta, "rope_scaling": None if kind == "default" else {**rest, "rope_type": kind}}


def _rope_values(values: Mapping[str, Any]) -> dict[str, Any]:
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ConfigError(f"rope_scaling is {_said(found)}, which is not a mapping")
    return found


def _get(values: Mapping[str, Any], key: str, family: Family) -> Any:
    if key not in values and key not in family.defaults:
        raise ConfigError(f"{key} is missing")
    return values.get(key, family.defaults.get(key))


def _whole(values: Mapping[str, Any], key: str, name: str) -> int:
    value = values.get(key)
    if value is None:
        raise ConfigError(f"not a {name} configuration: {key} is missing")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"not a {name} configuration: {key} is {_said(value)}, which is not a whole number")
    return value


def _list(value: Any) -> list[Any]:
    return [str(item) for item in value] if isinstance(value, list) else []


# Keys about the origin and the training of weights, which do not change their meaning.
_FREE = ("weights", "attention_dropout", "initializer_range", "router_aux_loss_coef", "bert.hidden_dropout")


def differences(theirs: Mapping[str, Any], model: Model) -> list[str]:
    """Each key that differs between a section `model` and this one, with both values.

    Keys about training (dropout, initial deviation) may differ.
    """
    ours = _flat(model.model_dump(mode="json"))
    flat = _flat(theirs)
    return [
        f"{key} is {_said(flat.get(key))} there, model.{key} is {_said(ours.get(key))}"
        for key in [*flat, *(key for key in ours if key not in flat)]
        if ours.get(key) != flat.get(key)
    ]


def _flat(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that determine the weights' meaning, by their names below `model.`."""
    bert = model.get("bert") or {}
    flat = {**model, **{f"bert.{key}": value for key, value in bert.items()}}
    head, heads = flat.get("head_dim"), flat.get("num_attention_heads")
    if head is not None and isinstance(heads, int) and head * heads == flat.get("hidden_size"):
        del flat["head_dim"]
    return {key: value for key, value in flat.items() if key not in (*_FREE, "bert")}


def _said(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value
