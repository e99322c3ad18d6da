"""The model at step 0 against transformers' own: losses, masks, initial values, tied tables."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from training.config import BertShape, Config
from training.models.bert import PretrainingBert, build_on_meta, initialise
from training.models.causal import named_parameters
from training.models.head import IGNORE

CPU = torch.device("cpu")
PUBLISHED = {"vocab_size": 30522, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
             "num_attention_heads": 16, "bert": BertShape(max_position_embeddings=512)}  # fmt: skip


def changed(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})


def built(config: Config, attention: str = "eager", **changes: object) -> PretrainingBert:
    """Build and initialise a model in evaluation mode, without dropout."""
    config = changed(config, **changes)
    model = build_on_meta(config, attention)
    initialise(model, config, CPU)
    return model.eval()


def inputs(vocabulary: int, rows: int = 4, length: int = 32, most: int = 6) -> dict[str, torch.Tensor]:
    """Random pairs; the first row is padded from its 20th token on."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocabulary, (rows, length), generator=draw)
    types = (torch.arange(length) >= length // 2).long().expand(rows, length).contiguous()
    mask = torch.ones_like(ids)
    mask[0, 20:] = 0
    positions = torch.stack([torch.randperm(20, generator=draw)[:most] for _ in range(rows)])
    labels = torch.randint(5, vocabulary, (rows, most), generator=draw)
    labels[1, 2:] = IGNORE
    following = torch.arange(rows) % 2
    return {
        "input_ids": ids, "token_type_ids": types, "attention_mask": mask, "masked_positions": positions,
        "masked_labels": labels, "next_sentence_label": following,
    }  # fmt: skip


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("tied", [True, False])
def test_losses_are_those_of_transformers(config: Config, attention: str, tied: bool) -> None:
    """Compared with transformers' forward pass with a plain mask, over all positions."""
    model, batch = built(config, attention, tie_word_embeddings=tied), inputs(512)
    words, following = model(**batch)
    theirs = model.hf(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
    )  # fmt: skip
    everywhere = torch.full_like(batch["input_ids"], IGNORE)
    everywhere.scatter_(1, batch["masked_positions"], batch["masked_labels"])
    expected = functional.cross_entropy(theirs.prediction_logits.flatten(0, 1), everywhere.flatten(), reduction="sum")
    torch.testing.assert_close(words, expected, rtol=1e-5, atol=1e-4)
    pairs = functional.cross_entropy(theirs.seq_relationship_logits, batch["next_sentence_label"], reduction="sum")
    torch.testing.assert_close(following, pairs, rtol=1e-5, atol=1e-5)
    assert words.dtype == torch.float32


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_is_not_attended_to(config: Config, attention: str) -> None:
    model, batch = built(config, attention), inputs(512)
    before = model(**batch)
    batch["input_ids"][0, 20:] = 7
    assert torch.equal(model(**batch), before)
    batch["input_ids"][0, 19] = 7  # control: a token before the padding is
    assert not torch.equal(model(**batch), before)


@pytest.mark.parametrize(
    "changes",
    [{}, {"vocab_size": 30522}, {"hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 8192}],
)
def test_first_losses_are_ln_of_the_vocabulary_and_ln_2(config: Config, changes: dict) -> None:
    """Plus half the variance of the first logits, hidden size x 0.02^2: 0.2 for BERT-large."""
    model = built(config, **changes)
    batch = inputs(model.hf.config.vocab_size, rows=32, most=18)
    counts = torch.tensor([(batch["masked_labels"] != IGNORE).sum(), 32])
    words, following = (model(**batch) / counts).tolist()
    spread = model.hf.config.hidden_size * 0.02**2 / 2
    assert words == pytest.approx(math.log(model.hf.config.vocab_size) + spread, rel=0.02)
    assert following == pytest.approx(math.log(2), rel=0.1)


def test_bert_large_has_the_published_number_of_parameters(config: Config) -> None:
    model = build_on_meta(changed(config, **PUBLISHED), "eager")
    assert sum(p.numel() for p in model.parameters()) == 336_226_108
    assert all(p.is_meta for p in model.parameters())


def test_initial_values_depend_on_seed_and_name_only(config: Config) -> None:
    first, second = built(config), built(config)
    other = build_on_meta(config, "eager")
    initialise(other, config.model_copy(update={"train": config.train.model_copy(update={"seed": 8})}), CPU)
    for (name, a), (_, b), (_, c) in zip(*(named_parameters(m) for m in (first, second, other)), strict=True):
        assert torch.equal(a, b), name
        if a.ndim == 2:
            assert not torch.equal(a, c), name
            assert a.std().item() == pytest.approx(0.02, rel=0.25), name
        else:
            assert torch.equal(a, torch.full_like(a, float(name.endswith("LayerNorm.weight")))), name


def test_tied_tables_are_one_parameter(config: Config) -> None:
    predictions = (model := built(config)).hf.cls.predictions
    assert predictions.decoder.weight is model.hf.bert.embeddings.word_embeddings.weight
    assert predictions.decoder.bias is predictions.bias
    untied = built(config, tie_word_embeddings=False).hf.cls.predictions
    assert untied.decoder.bias is untied.bias
    assert not torch.equal(untied.decoder.weight, predictions.decoder.weight)
