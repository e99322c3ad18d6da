"""Checks that a config.json describes the same model as the configuration's section `model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import BertConfig, PreTrainedConfig

from training.config import Model
from training.models.causal import CONFIGS
from training.weights.errors import WeightsError
from training.weights.tensors import read_object

CONFIG = "config.json"
_SHARED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "tie_word_embeddings",
)  # fmt: skip
_CAUSAL = (*_SHARED, "num_key_value_heads", "rms_norm_eps")
# Keys about the origin and the training of weights, which do not change their meaning.
_FREE = ("weights", "attention_dropout", "initializer_range", "bert", "bert.hidden_dropout")
_BERT = ("max_position_embeddings", "type_vocab_size", "layer_norm_eps")
# Fixed properties of these models here; another value in config.json is another architecture.
_FIXED: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "qwen2": {"hidden_act": "silu", "use_sliding_window": False},
    "bert": {"hidden_act": "gelu", "position_embedding_type": "absolute"},
}


def check_architecture(directory: Path, model: Model) -> None:
    """Compare config.json in `directory` with the section `model`, key by key.

    Keys about training (dropout, initial deviation) may differ. Code named in the file is never run.

    Raises:
        WeightsError: lists every key that differs, with both values.
    """
    path = directory / CONFIG
    if not path.exists():
        raise WeightsError(f"{path} is missing; it describes the weights' architecture")
    values = read_object(path)
    kind = values.get("model_type")
    if kind != model.architecture:
        raise WeightsError(f"{path}: model_type is {kind!r}, model.architecture is {model.architecture}")
    if values.get("quantization_config"):
        raise WeightsError(f"{path}: the weights are quantized; use a revision in bf16, fp16 or fp32")
    theirs = _read(path, values, model.architecture)
    differences = [*_unsupported(theirs, model.architecture), *_differences(_keys_of(theirs, model), model)]
    if differences:
        raise WeightsError(f"{path}: {'; '.join(differences)}")


def check_same_model(theirs: dict[str, Any], ours: Model, where: str) -> None:
    """Compare the section `model` in another run's checkpoint with this one's.

    Raises:
        WeightsError: lists every key that differs, with both values.
    """
    differences = _differences(_flat(theirs), ours)
    if differences:
        raise WeightsError(f"{where}: {'; '.join(differences)}")


def _differences(theirs: dict[str, Any], model: Model) -> list[str]:
    ours = _flat(model.model_dump(mode="json"))
    return [
        f"{key} is {_said(value)} there, model.{key} is {_said(ours.get(key))}"
        for key, value in theirs.items()
        if ours.get(key) != value
    ]


def _flat(model: dict[str, Any]) -> dict[str, Any]:
    """The keys of a section `model` that determine the weights' meaning, by their names below `model.`."""
    bert = model.get("bert") or {}
    flat = {**model, **{f"bert.{key}": value for key, value in bert.items()}}
    return {key: value for key, value in flat.items() if key not in _FREE}


def _keys_of(theirs: PreTrainedConfig, model: Model) -> dict[str, Any]:
    """The values of a config.json under the same names."""
    found = {key: getattr(theirs, key) for key in (_SHARED if model.bert else _CAUSAL)}
    if model.bert:
        return {**found, **{f"bert.{key}": getattr(theirs, key) for key in _BERT}}
    rope = {key: value for key, value in theirs.rope_parameters.items() if key != "type"}
    theta = rope.pop("rope_theta", None)
    plain = rope.get("rope_type", "default") == "default"
    return {**found, "rope_theta": theta, "rope_scaling": None if plain else rope}


def _read(path: Path, values: dict[str, Any], architecture: str) -> PreTrainedConfig:
    kind = BertConfig if architecture == "bert" else CONFIGS[architecture]
    try:
        return kind.from_dict(values)
    except Exception as error:  # noqa: BLE001 - the library's strict data classes raise many types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise WeightsError(f"{path}: not a {architecture} configuration: {' '.join(lines[:2])}") from None


def _unsupported(theirs: PreTrainedConfig, architecture: str) -> list[str]:
    found = {key: getattr(theirs, key, value) for key, value in _FIXED[architecture].items()}
    differences = [
        f"{key} is {_said(found[key])}, but only {_said(value)} is supported"
        for key, value in _FIXED[architecture].items()
        if found[key] != value
    ]
    head = getattr(theirs, "head_dim", None)
    if head is not None and head * theirs.num_attention_heads != theirs.hidden_size:
        differences.append(f"head_dim is {head}, but only hidden_size / num_attention_heads is supported")
    return differences


def _said(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value
