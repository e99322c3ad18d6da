"""Prepares and opens the data of a BERT run, and computes the loss of a model without skill (baseline)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from training.config import Config, Masking
from training.data.bert import hdf5
from training.data.bert.masking import Rules
from training.data.bert.pairs import SentencePairs
from training.data.bert.prepare_pairs import prepare_pairs
from training.data.bert.wordpiece import read_vocabulary
from training.data.index import HELDOUT, TOKENIZER, TRAIN, Index, read_index

if TYPE_CHECKING:
    from training.data.indexed_feed import Samples  # which loads torch

# Cuts, second sentences and masks of the held-out samples are the same in every run.
HELDOUT_SEED = 0


def prepare_for(
    config: Config,
    root: Path,
    progress: Callable[[str], None],
    base: Path | None = None,
    shared: Path | None = None,
) -> Path:
    """Return the directory of the configuration's dataset, as `training.prepare.prepare_for`.

    `base` is the directory of the tokenizer of `model.weights`. It is used instead of training one, because
    those weights are meaningless with another vocabulary.
    """
    tokenizer = str(base) if base is not None and config.data.tokenizer == "train" else config.data.tokenizer
    found = hdf5.shards_in(config.data.source, config.data.text_field)
    if found is not None:
        return hdf5.prepare(
            source=found,
            path=config.data.source,
            heldout_fraction=config.data.heldout_fraction,
            tokenizer=tokenizer,
            vocab_size=config.model.vocab_size,
            sequence_length=config.sequence_length,
            most=_masking(config).most,
            root=root,
            progress=progress,
            shared=shared,
        )
    return prepare_pairs(
        source=config.data.source,
        text_field=config.data.text_field,
        heldout_fraction=config.data.heldout_fraction,
        tokenizer=tokenizer,
        vocab_size=config.model.vocab_size,
        sequence_length=config.sequence_length,
        root=root,
        progress=progress,
        shared=shared,
    )


def splits_of(config: Config, directory: Path) -> tuple[Samples, Samples]:
    """Open the training and the held-out split of a prepared dataset."""
    index = read_index(directory)
    if index.settings["kind"] == hdf5.KIND:
        return hdf5.MaskedRows(directory, index, TRAIN), hdf5.MaskedRows(directory, index, HELDOUT)
    return (
        _split(config, directory, index, TRAIN, config.train.seed),
        _split(config, directory, index, HELDOUT, HELDOUT_SEED),
    )


def _split(config: Config, directory: Path, index: Index, split: str, seed: int) -> SentencePairs:
    masking = _masking(config)
    rules = Rules(masking.fraction, masking.most, masking.whole_words)
    vocabulary = read_vocabulary(directory / TOKENIZER)
    return SentencePairs(directory, index, split, config.sequence_length, rules, vocabulary, seed)


def _masking(config: Config) -> Masking:
    assert config.masking is not None  # the configuration requires it for this architecture
    return config.masking


def reference(config: Config, directory: Path) -> dict[str, float]:
    """Sums of both losses in nats: of a model that knows only word frequencies, and of one that guesses."""
    guess = math.log(2)
    return {
        "unigram_nats_and_ln_2": read_index(directory).unigram_nats + guess,
        "ln_vocab_and_ln_2": math.log(config.model.vocab_size) + guess,
    }
