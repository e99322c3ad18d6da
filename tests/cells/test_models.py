"""The model Components: each is the published architecture, counted to the unit, and says so."""

from __future__ import annotations

import re

import pytest

from tools.core import repo
from training.config import Config, load_texts
from training.config.counting import adapter_parameters, parameters

MODELS = repo.root() / "overlays/model"
NAMES = sorted(path.parent.name for path in MODELS.glob("*/model.yaml"))
# Published (or, for the tiny ones, own) parameter counts; and the adapters' where only they are trained.
COUNTS = {
    "llama-tiny": (4_196_608, None),
    "llama-3-2-1b": (1_235_814_400, None),
    "llama-3-2-3b": (3_212_749_824, None),
    "llama-3-1-8b": (8_030_261_248, None),
    "llama-3-1-70b": (70_553_706_496, None),
    "llama-2-7b": (6_738_415_616, None),
    "llama-2-13b": (13_015_864_320, None),
    "llama-2-70b": (68_976_648_192, None),
    "llama-tiny-lora": (4_196_608, 155_648),
    "deepseek-r1-distill-qwen-1-5b-lora": (1_777_088_000, 18_464_768),
    "deepseek-r1-distill-qwen-1-5b-alpaca": (1_777_088_000, 4_358_144),
    "llama-3-1-8b-lora": (8_030_261_248, 41_943_040),
    "llama-3-1-70b-lora": (70_553_706_496, 207_093_760),
    "qwen3-0-6b": (596_049_920, None),
    "mistral-7b": (7_241_732_096, None),
    "phi-4": (14_659_507_200, None),
    "smollm2-135m": (134_515_008, None),
    "mixtral-8x7b": (46_702_792_704, None),
    "bert-tiny": (975_362, None),
    "bert-large": (336_226_108, None),
    "bert-large-phase2": (336_226_108, None),
}
# (theta, rope factor, key/value heads, vocabulary, tied) of the published config.json files.
DETAILS = {
    "llama-3-2-1b": (500000.0, 32.0, 8, 128256, True),
    "llama-3-2-3b": (500000.0, 32.0, 8, 128256, True),
    "llama-3-1-8b": (500000.0, 8.0, 8, 128256, False),
    "llama-3-1-70b": (500000.0, 8.0, 8, 128256, False),
    "llama-2-7b": (10000.0, None, 32, 32000, False),
    "llama-2-13b": (10000.0, None, 40, 32000, False),
    "llama-2-70b": (10000.0, None, 8, 32000, False),
    "deepseek-r1-distill-qwen-1-5b-lora": (10000.0, None, 2, 151936, False),
    "deepseek-r1-distill-qwen-1-5b-alpaca": (10000.0, None, 2, 151936, False),
}
CELL = "parallel: {micro_batch_size: 1}\ncheckpoint: {every: 5}\n"


def text_of(name: str) -> str:
    return (MODELS / name / "model.yaml").read_text(encoding="utf-8")


def load(name: str) -> Config:
    """Return a model's configuration with the minimum of hardware and cell."""
    texts = {"model": (name, text_of(name)), "hardware": ("hardware", ""), "cell": ("cell", CELL)}
    return load_texts(texts)


def test_every_model_is_here() -> None:
    assert set(NAMES) == set(COUNTS)


@pytest.mark.parametrize("name", NAMES)
def test_counts(name: str) -> None:
    config = load(name)
    whole, trained = COUNTS[name]
    assert parameters(config.model) == whole
    assert (adapter_parameters(config.model, config.lora) if config.lora else None) == trained


@pytest.mark.parametrize("name", [name for name in NAMES if name != "llama-tiny"])
def test_the_head_of_the_file_gives_counts_and_sources(name: str) -> None:
    """The comment at the top has the parameter count of the configuration, and its source."""
    head = text_of(name).partition("\nmodel:")[0]
    whole, trained = COUNTS[name]
    if name != "llama-tiny-lora":
        assert f"{whole:,}" in head
        assert (trained is None) or f"{trained:,}" in head
    assert bool(re.search(r"config\.json of [\w.-]+/[\w.-]+ on the Hugging Face hub", head)) == ("tiny" not in name)


@pytest.mark.parametrize("name", DETAILS)
def test_positions_heads_and_words_are_the_published_ones(name: str) -> None:
    model = load(name).model
    scaling = model.rope_scaling
    found = (model.rope_theta, scaling.factor if scaling else None)
    assert (*found, model.num_key_value_heads, model.vocab_size, model.tie_word_embeddings) == DETAILS[name]
    if scaling:
        assert (scaling.low_freq_factor, scaling.high_freq_factor) == (1.0, 4.0)
        assert scaling.original_max_position_embeddings == 8192


def test_an_adapters_base_is_the_model_of_that_name() -> None:
    """The tiny adapter uses the tiny model's run; each other adapter uses the model it is named after."""
    for name in ("llama-tiny", "llama-3-1-8b", "llama-3-1-70b"):
        base, adapted = load(name).model, load(f"{name}-lora").model
        assert adapted.model_copy(update={"weights": None}) == base
    assert load("llama-tiny-lora").model.weights == "run:cpu-llama-tiny-train"


def test_phase_2_goes_on_with_phase_1() -> None:
    """The same model from phase 1's run, with sequences four times as long and four times the guesses."""
    first, second = load("bert-large"), load("bert-large-phase2")
    assert second.model.model_copy(update={"weights": None}) == first.model
    assert second.model.weights == "run:trn1-bert-large-train"
    assert first.masking
    assert second.masking
    assert (second.sequence_length, second.masking.most) == (
        4 * first.sequence_length,
        4 * first.masking.most,
    )
