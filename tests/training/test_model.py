"""The model at step 0: right parameters and buffers, sharded or not; documents are separate."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, eager_attention_forward

from training.config import Config, ConfigError, Device
from training.device import resolve
from training.models.causal import (
    CausalLM,
    attention_in_blocks,
    build_on_meta,
    document_mask,
    initialise,
    named_parameters,
)

CPU = torch.device("cpu")


def _built(config: Config, attention: str = "eager", **changes: object) -> CausalLM:
    config = config.model_copy(update={"model": config.model.model_copy(update=changes)})
    model = build_on_meta(config, attention)
    initialise(model, config, CPU)
    return model


def _batch(vocabulary: int, documents: list[int], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Two rows of the given document lengths: tokens, labels, positions, documents."""
    length = sum(documents)
    tokens = torch.randint(0, vocabulary, (2, length + 1), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(n) for n in documents]).expand(2, length)
    ids = torch.cat([torch.full((n,), i) for i, n in enumerate(documents)]).expand(2, length)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), positions.contiguous(), ids.contiguous()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 8192,
        },
    ],
)
def test_first_loss_is_ln_of_the_vocabulary(config: Config, changes: dict) -> None:
    model = _built(config, **changes)
    vocabulary = model.hf.config.vocab_size
    tokens, labels, positions, documents = _batch(vocabulary, [96, 160])
    loss = model(tokens, labels, positions, documents).item() / labels.numel()
    assert loss == pytest.approx(math.log(vocabulary), rel=0.02)


def test_control_other_deviations_miss_ln_of_the_vocabulary(config: Config) -> None:
    model = build_on_meta(config, "eager")
    model.to_empty(device=CPU)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(0))
    tokens, labels, positions, documents = _batch(512, [32])
    loss = model(tokens, labels, positions, documents).item() / labels.numel()
    assert loss != pytest.approx(math.log(512), rel=0.02)


def test_norms_are_one_and_rotary_tables_are_right(config: Config) -> None:
    model = _built(config)
    norms = [m for m in model.modules() if isinstance(m, LlamaRMSNorm)]
    assert len(norms) == 2 * 2 + 1
    assert all(torch.equal(n.weight, torch.ones_like(n.weight)) for n in norms)
    rotary = [m for m in model.modules() if isinstance(m, LlamaRotaryEmbedding)]
    expected = 1.0 / 10000.0 ** (torch.arange(0, 16, 2).float() / 16)
    assert len(rotary) == 1
    torch.testing.assert_close(rotary[0].inv_freq, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(rotary[0].original_inv_freq, expected, rtol=1e-6, atol=0)


def test_tied_head_is_one_parameter(config: Config) -> None:
    model = _built(config)
    assert model.hf.lm_head.weight is model.hf.model.embed_tokens.weight
    assert len(dict(named_parameters(model))) == len(list(model.parameters()))


def test_weights_depend_on_the_seed_only(config: Config) -> None:
    first, second = _built(config), _built(config)
    other = build_on_meta(config, "eager")
    initialise(other, config.model_copy(update={"train": config.train.model_copy(update={"seed": 8})}), CPU)
    for (name, a), (_, b), (_, c) in zip(*(named_parameters(m) for m in (first, second, other)), strict=True):
        assert torch.equal(a, b), name
        assert name.endswith("norm.weight") or not torch.equal(a, c), name


def test_sharded_initialisation_on_two_ranks_equals_the_whole() -> None:
    """Of Llama and of BERT."""
    script = Path(__file__).with_name("sharded_init.py")
    path = f"{Path(__file__).parents[2]}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.splitlines()) == [
        f"{name}: equal to the whole model" for name in ("bert", "bert", "llama", "llama")
    ]


@pytest.mark.parametrize("attention", ["eager", "blocks", "sdpa"])
def test_packed_documents_do_not_attend_to_each_other(config: Config, attention: str) -> None:
    model = _built(config, attention)
    tokens, _, positions, documents = _batch(512, [10, 14, 8])
    before = model.logits(tokens, positions, documents)
    changed = tokens.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 512
    after = model.logits(changed, positions, documents)
    assert torch.equal(before[:, :12], after[:, :12])  # an earlier document, and earlier in the same one
    assert torch.equal(before[:, 24:], after[:, 24:])  # a later document
    assert not torch.equal(before[:, 12:24], after[:, 12:24])
    mixed = model.logits(changed, positions, torch.zeros_like(documents))  # control: one document leaks
    assert not torch.equal(mixed[:, 24:], model.logits(tokens, positions, torch.zeros_like(documents))[:, 24:])


def test_a_packed_document_has_the_same_logits_as_alone(config: Config) -> None:
    model = _built(config)
    tokens, _, positions, documents = _batch(512, [10, 14])
    packed = model.logits(tokens, positions, documents)[:, 10:]
    alone = model.logits(tokens[:, 10:], positions[:, 10:], documents[:, 10:])
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [96, 256, 300], ids=["one block", "two blocks", "a short last block"])
@pytest.mark.parametrize("window", [None, 40])
def test_attention_in_blocks_is_plain_attention(length: int, window: int | None) -> None:
    shapes = ((2, 4, length, 16), (2, 2, length, 16), (2, 2, length, 16))
    given = [torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_() for shape in shapes]
    documents = (torch.arange(length) >= 50).long().expand(2, -1)
    mask = document_mask(documents, "blocks", window)
    assert torch.equal(mask, document_mask(documents, "eager", window))
    module: Any = torch.nn.Module()
    module.num_key_value_groups = 2

    def step(attention: Callable[..., Any], mask: torch.Tensor) -> list[torch.Tensor]:
        out = attention(module, *given, mask, scaling=0.25)[0]
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    plain = step(eager_attention_forward, mask)
    torch.testing.assert_close(step(attention_in_blocks, mask), plain)
    everything = step(eager_attention_forward, torch.zeros_like(mask))  # control
    assert not torch.allclose(everything[0], plain[0], rtol=1e-2)


@pytest.mark.parametrize("attention", ["eager", "blocks", "sdpa"])
def test_without_a_document_mask_a_sample_is_one_document(config: Config, attention: str) -> None:
    tokens, _, positions, documents = _batch(512, [10, 14])
    joined = config.model_copy(update={"data": config.data.model_copy(update={"document_mask": False})})
    found = _built(joined, attention).logits(tokens, positions, documents)
    places = torch.arange(24).expand_as(positions)
    expected = _built(config).logits(tokens, places, torch.zeros_like(documents))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    masked = _built(config).logits(tokens, positions, documents)
    assert not torch.allclose(found[:, 10:], masked[:, 10:], rtol=1e-2), "the mask makes no difference"


def test_attention_without_a_mask_is_causal(config: Config) -> None:
    """torch chooses its causal kernels only where it gets no mask at all."""
    joined = config.model_copy(update={"data": config.data.model_copy(update={"document_mask": False})})
    model = _built(joined, "sdpa")
    assert model._masks(torch.zeros(1, 8, dtype=torch.int64)) is None
    tokens, _, positions, documents = _batch(512, [24])
    before = model.logits(tokens, positions, documents)
    changed = tokens.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 512
    after = model.logits(changed, positions, documents)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])
    assert _built(config, "sdpa")._masks(torch.zeros(1, 8, dtype=torch.int64)) is not None


def test_masks_of_eager_and_sdpa_agree() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1]])
    boolean, additive = document_mask(documents, "sdpa"), document_mask(documents, "eager")
    assert torch.equal(boolean, additive == 0)
    assert boolean[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


@pytest.mark.long
def test_flex_attention_computes_what_plain_attention_does(config: Config) -> None:
    """The GPU's attention, here on a CPU: packed documents, grouped queries, forward pass."""
    try:
        resolve(config.model_copy(update={"device": Device(compile="on")}))
    except ConfigError as error:
        pytest.skip(f"flex_attention compiles itself: {error}")
    tokens, _, positions, documents = _batch(512, [100, 156])
    flex, plain = (_built(config, name, hidden_size=128) for name in ("flex_attention", "eager"))
    with torch.no_grad():
        torch.testing.assert_close(
            flex.logits(tokens, positions, documents),
            plain.logits(tokens, positions, documents),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.long
def test_a_compiled_block_mask_is_the_same_for_all_documents() -> None:
    compiled = torch.compile(create_block_mask)
    documents = torch.arange(256).div(43, rounding_mode="floor").expand(2, 256)
    for shift, window in ((0, None), (7, None), (7, 64)):
        ids = documents.roll(shift, 1).contiguous()
        expected = document_mask(ids, "flex_attention", window)
        assert torch.equal(document_mask(ids, "flex_attention", window, compiled).to_dense(), expected.to_dense())
