"""Low-rank adapters by peft: injected on meta, the base frozen, only they (and modules_to_save) are trained.

Parameters keep peft's names: `….q_proj.base_layer.weight` is the base's, `….q_proj.lora_A.default.weight` an
adapter's, `lm_head.modules_to_save.default.weight` the trained copy of a whole module.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from training.config import Config, Lora
from training.models.causal import named_parameters, trained_parameters
from training.models.counting import parameters, saved_parameters, trainable_parameters
from training.models.init import fill_uniform
from training.task import Trainable

if TYPE_CHECKING:
    from peft import LoraConfig

ADAPTER = "default"
_SUFFIX = {"norm": "model.norm"}  # peft compares ends of names, and other norms end so too
_A, _B, _SAVED = f".lora_A.{ADAPTER}.", f".lora_B.{ADAPTER}.", f".modules_to_save.{ADAPTER}."


def peft_config(lora: Lora, **more: Any) -> LoraConfig:
    """peft's configuration of the section `lora`; `more` are further keys of peft's."""
    from peft import LoraConfig  # here, for every rank's start would wait for it, with adapters or without

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
    """Put the section `lora` into a model on meta, which freezes the base; adapters are fp32.

    The base is kept in `precision`: it needs no fp32 copy, for nothing is added to it.
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
    if trained != trainable_parameters(config.model, config.lora):
        counted = trainable_parameters(config.model, config.lora)
        raise AssertionError(f"{trained} parameters are trained, {counted} counted")


def describe(config: Config) -> str:
    """How many parameters are trained, and their share of all that the trained model has."""
    trained, base = trainable_parameters(config.model, config.lora), parameters(config.model)
    whole = base if config.lora is None else base + trained - saved_parameters(config.model, config.lora)
    return f"{trained:,} of {whole:,} parameters are trained ({100 * trained / whole:.2f} %)"


def base_name(name: str) -> str | None:
    """The base's own name of a parameter's values, None for an adapter's, which the base does not have."""
    if _A in name or _B in name:
        return None
    for infix in (".base_layer.", ".original_module.", _SAVED):
        name = name.replace(infix, ".")
    return name


def adapter_name(name: str) -> str:
    """The name that a peft adapter's file gives a trained parameter."""
    for infix in (_A, _B):
        name = name.replace(infix, infix.replace(f".{ADAPTER}.", "."))
    return "base_model.model." + name.replace(_SAVED, ".")


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Give adapters their start, whole or sharded: B is zero, A even within 1 / sqrt(inputs), as in peft."""
    for name, parameter in named_parameters(model):
        if _A in name:
            fill_uniform(name, parameter, seed, 1 / math.sqrt(parameter.shape[1]))
        elif _B in name:
            parameter.zero_()
