"""Adapters: those of peft, counted, with a frozen base; the same initial values on any number of ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.training.weights.bases import (
    LLAMA,
    LORA,
    QWEN2,
    configuration,
    logits,
    publish,
    token_ids,
    trainers,
)
from training.config import ConfigError
from training.config.counting import trainable_parameters
from training.models import lora
from training.models.causal import named_parameters, trained_parameters
from training.run.directory import RunDir

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, LORA),
    "every linear layer, qwen2": (QWEN2, {**LORA, "target_modules": ALL}),
    "norms and a biased layer saved": (
        QWEN2,
        {**LORA, "modules_to_save": ["norm", "input_layernorm", "k_proj"]},
    ),
    "both tables saved": (QWEN2, {**LORA, "modules_to_save": ["embed_tokens", "lm_head"]}),
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "mine")


@pytest.mark.parametrize("case", CASES)
def test_what_is_trained_is_what_peft_trains(tmp_path: Path, run: RunDir, case: str) -> None:
    model, section = CASES[case]
    base = publish(tmp_path / "base", **model)
    config = configuration(str(tmp_path / "base"), section, **model)
    assert config.lora is not None
    ours = trainers(config, run)
    trained = {name: tuple(p.shape) for name, p in trained_parameters(ours)}

    saved_modules = [{"norm": "model.norm"}.get(name, name) for name in section.get("modules_to_save", [])]
    settings = LoraConfig(
        r=4, lora_alpha=8, target_modules=section["target_modules"], modules_to_save=saved_modules or None
    )
    theirs = get_peft_model(copy.deepcopy(base), settings)
    expected = {n: tuple(p.shape) for n, p in theirs.named_parameters() if p.requires_grad}
    assert {f"base_model.model.{name}": shape for name, shape in trained.items()} == expected
    count, whole = theirs.get_nb_trainable_parameters()
    assert sum(p.numel() for _, p in trained_parameters(ours)) == count
    assert trainable_parameters(config.model, config.lora) == count
    assert count < base.num_parameters()
    saved = sum(p.numel() for n, p in ours.named_parameters() if ".modules_to_save." in n)
    share = f"({100 * count / (whole - saved):.2f} %)"
    assert lora.describe(config) == f"{count:,} of {whole - saved:,} parameters are trained {share}"


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_peft_and_the_base_gets_none(tmp_path: Path, run: RunDir, case: str) -> None:
    model, section = CASES[case]
    base = publish(tmp_path / "base", **model)
    ours = trainers(configuration(str(tmp_path / "base"), section, **model), run)
    settings = lora.peft_config(configuration(str(tmp_path / "base"), section, **model).lora)  # type: ignore[arg-type]
    theirs = get_peft_model(base, settings)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in trained_parameters(ours):
            parameter.add_(torch.randn(parameter.shape) * 0.02)
            theirs.get_parameter(f"base_model.model.{name}").copy_(parameter)
    ids = token_ids()
    positions, documents = torch.arange(24).expand(2, 24), torch.zeros_like(ids)
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], dim=1)
    ours(ids, labels, positions, documents).sum().backward()
    shifted = theirs(ids).logits[:, :-1].flatten(0, 1)
    torch.nn.functional.cross_entropy(shifted, ids[:, 1:].flatten(), reduction="sum").backward()
    for name, parameter in named_parameters(ours):
        if parameter.requires_grad:
            other = theirs.get_parameter(f"base_model.model.{name}").grad
            torch.testing.assert_close(parameter.grad, other, rtol=1e-3, atol=1e-4)
        else:
            assert parameter.grad is None, name


def test_new_adapters_change_nothing_and_depend_on_the_seed_only(tmp_path: Path, run: RunDir) -> None:
    publish(tmp_path / "base")
    plain = trainers(configuration(str(tmp_path / "base")), run)
    config = configuration(str(tmp_path / "base"), LORA)
    first, second = trainers(config, run), trainers(config, run)
    assert torch.equal(logits(first, token_ids()), logits(plain, token_ids()))
    for (name, a), (_, b) in zip(trained_parameters(first), trained_parameters(second), strict=True):
        assert torch.equal(a, b), name
        if "lora_A" in name:
            bound = a.shape[1] ** -0.5
            assert 0.9 * bound < a.abs().max() <= bound
    assert len({tuple(p.flatten()[:4].tolist()) for n, p in trained_parameters(first) if "lora_A" in n}) == 6
    other = trainers(config.model_copy(update={"train": config.train.model_copy(update={"seed": 8})}), run)
    assert not torch.equal(*(next(p for n, p in trained_parameters(m) if "lora_A" in n) for m in (first, other)))


def test_a_bf16_device_keeps_the_base_in_bf16_and_the_rest_in_fp32(tmp_path: Path, run: RunDir) -> None:
    base = publish(tmp_path / "base", **QWEN2)
    section = {**LORA, "modules_to_save": ["norm"]}
    model = trainers(configuration(str(tmp_path / "base"), section, **QWEN2), run, "bf16")
    for name, parameter in named_parameters(model):
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
        stored = lora.base_name(name)
        if stored is not None:
            assert torch.equal(parameter, base.get_parameter(stored).to(parameter.dtype)), name
    assert all(buffer.dtype == torch.float32 for buffer in model.buffers())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        ours = logits(model, token_ids()).float()
    torch.testing.assert_close(ours, base(token_ids()).logits, rtol=0.05, atol=0.2)


@pytest.mark.parametrize(
    ("section", "model", "message"),
    [
        ({**LORA, "modules_to_save": ["lm_head"]}, {}, "names lm_head, but tie_word_embeddings makes"),
        ({**LORA, "modules_to_save": ["q_proj"]}, {}, "modules_to_save and target_modules both name q_proj"),
        ({**LORA, "modules_to_save": ["norm", "norm"]}, {}, "modules_to_save names a module twice"),
        ({**LORA, "modules_to_save": ["score"]}, {}, "modules_to_save.0"),
    ],
)
def test_sections_without_an_adapter_are_refused(section: dict, model: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.yaml:1: ") as caught:
        configuration("/somewhere", section, **model)
    assert message in str(caught.value)
