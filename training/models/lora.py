"""Low-rank adapters by peft, injected on meta: only they and modules_to_save are trained, the base is frozen.

Parameters keep peft's names: `….q_proj.base_layer.weight` is the base's, `….q_proj.lora_A.default.weight` an
adapter's, `lm_head.modules_to_save.default.weight` the trained copy of a module.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from training.config import Config, ConfigError, Lora
from training.config.counting import parameters, saved_parameters, trainable_parameters
from training.models.causal import named_parameters, trained_parameters
from training.models.init import fill_uniform
from training.task import Trainable

if TYPE_CHECKING:
    from peft import LoraConfig

ADAPTER = "default"
_SUFFIX = {"norm": "model.norm"}  # peft compares ends of names, and other norms have the same end
_A, _B, _SAVED = f".lora_A.{ADAPTER}.", f".lora_B.{ADAPTER}.", f".modules_to_save.{ADAPTER}."


def peft_config(lora: Lora, **more: Any) -> LoraConfig:
    """peft's configuration for the section `lora`; `more` are further keys of peft's."""
    from peft import LoraConfig  # imported here: at the top it would delay every rank, even without adapters

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        modules_to_save=[_SUFFIX.get(name, name) for name in lora.modules_to_save] or None,
        bias="none",
        task_type="CAUSAL_LM",
        **more,
    )


def adapt(model: Trainable, config: Config, precision: str) -> None:
    """Add the adapters of the section `lora` to a model on meta, which freezes the base; adapters are fp32.

    The base is kept in `precision`: it needs no fp32 copy, because it is never updated.
    """
    from peft import inject_adapter_in_model  # as above

    assert config.lora is not None
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.filterwarnings("ignore", message=".*meta device.*")
        inject_adapter_in_model(peft_config(config.lora), model.hf, ADAPTER, low_cpu_mem_usage=True)
    for parameter in model.parameters():
        if precision == "bf16" and not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    trained = sum(parameter.numel() for _, parameter in trained_parameters(model))
    counted = trainable_parameters(config.model, config.lora)
    if trained != counted:
        raise ConfigError(
            f"lora: the model has {trained:,} trained parameters, but training/config/counting.py counts {counted:,}"
        )


def describe(config: Config) -> str:
    """Say how many parameters are trained, and their share of all parameters of the trained model."""
    trained, base = trainable_parameters(config.model, config.lora), parameters(config.model)
    whole = base if config.lora is None else base + trained - saved_parameters(config.model, config.lora)
    return f"{trained:,} of {whole:,} parameters are trained ({100 * trained / whole:.2f} %)"


def base_name(name: str) -> str | None:
    """The base's name of a parameter, None for an adapter's, which the base does not have."""
    if _A in name or _B in name:
        return None
    for infix in (".base_layer.", ".original_module.", _SAVED):
        name = name.replace(infix, ".")
    return name


def adapter_name(name: str) -> str:
    """The name of a trained parameter in a peft adapter's file."""
    for infix in (_A, _B):
        name = name.replace(infix, infix.replace(f".{ADAPTER}.", "."))
    return "base_model.model." + name.replace(_SAVED, ".")


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Initialise the adapters, sharded or not: B is zero, A uniform within 1 / sqrt(inputs), as in peft."""
    for name, parameter in named_parameters(model):
        if _A in name:
            fill_uniform(name, parameter, seed, 1 / math.sqrt(parameter.shape[1]))
        elif _B in name:
            parameter.zero_()
