"""BERT's samples: it predicts the words at each [MASK] of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from training.checkpoint.read import Checkpoint
from training.checkpoint.shards import shards_of
from training.config import Config, ConfigError
from training.data.bert.wordpiece import CLASS, INSIDE, MASK, SEPARATOR
from training.data.index import TOKENIZER
from training.data.run_tokenizer import dataset_directory
from training.models.bert import PretrainingBert, build_on_meta, initialise
from training.models.causal import named_parameters
from training.run.directory import RunDir


def filled(checkpoint: Checkpoint, config: Config, run: RunDir, prompts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (prompt, prompt with the most probable word at each [MASK]).

    Raises:
        ConfigError: see `check_prompts`.
        CheckpointError: the checkpoint does not verify.
    """
    directory = dataset_directory(checkpoint.meta, run)
    check_prompts(prompts, config, directory)
    model, tokenizer = _model(checkpoint, config), _tokenizer(directory)
    for prompt in prompts:
        yield prompt, _fill(model, tokenizer, prompt)


def check_prompts(prompts: Sequence[str], config: Config, directory: Path) -> None:
    """Check before training that the prompts can be filled in with the words of a dataset.

    Raises:
        ConfigError: a prompt has no [MASK] or too many tokens, or the dataset has no tokenizer.
    """
    if not prompts:
        return
    if not (directory / TOKENIZER / "tokenizer.json").exists():
        raise ConfigError("sample.prompts: the data has token ids but no words; set data.tokenizer to its tokenizer")
    tokenizer = _tokenizer(directory)
    for prompt in prompts:
        if MASK not in prompt:
            raise ConfigError(f"sample.prompts: BERT fills in words, but {prompt!r} has no {MASK}")
        count = len(_ids(tokenizer, prompt))
        if count > config.sequence_length:
            raise ConfigError(
                f"sample.prompts: {prompt!r} has {count} tokens, sequence_length is {config.sequence_length}"
            )


def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast.from_pretrained(directory / TOKENIZER)


def _model(checkpoint: Checkpoint, config: Config) -> PretrainingBert:
    model = build_on_meta(config, "sdpa")
    initialise(model, config, torch.device("cpu"))
    own = [(f"model.{name}", parameter.detach()) for name, parameter in named_parameters(model)]
    checkpoint.load(shards_of(own), only="model.")
    return model.eval()


@torch.no_grad()
def _fill(model: PretrainingBert, tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    tokens = torch.tensor([_ids(tokenizer, prompt)])
    masked = tokens[0] == tokenizer.convert_tokens_to_ids(MASK)
    hidden, _ = model.encode(tokens, torch.zeros_like(tokens), torch.ones_like(tokens))
    guesses = model.hf.cls.predictions(hidden[0, masked]).argmax(-1)
    words = [str(word).removeprefix(INSIDE) for word in tokenizer.convert_ids_to_tokens(guesses.tolist())]
    first, *others = prompt.split(MASK)
    return first + "".join(word + other for word, other in zip(words, others, strict=True))


def _ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """[CLS] prompt [SEP], with a mask token at each [MASK]."""
    mask, cls, sep = (tokenizer.convert_tokens_to_ids(token) for token in (MASK, CLASS, SEPARATOR))
    first, *others = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in prompt.split(MASK))
    return [cls, *first, *(token for part in others for token in (mask, *part)), sep]
