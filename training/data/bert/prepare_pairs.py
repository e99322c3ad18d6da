"""Turns documents into a dataset of sentences: scan, tokenizer, tokens and sentence ends, index, one rename.

Beside the files of every dataset, a split has flat little-endian 64-bit integers: the first token of each
sentence (`-sentences.bin`) and the first sentence of each document (`-documents.bin`), both with one more
entry for the end, and for each sample the first sentence and the one after the last (`-runs.bin`). Special
tokens are not stored; they are put around a pair when it is read.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data import token_shards
from training.data import tokenizer as tokenizers_
from training.data.bert import wordpiece
from training.data.bert.pairs import FRAME, PairWriter
from training.data.bert.sentences import sentences_of
from training.data.errors import DataError
from training.data.index import FORMAT, HELDOUT, INDEX, TOKENIZER, TRAIN, Index
from training.data.prepare_tokens import (
    Scan,
    directory_name,
    entropy,
    keyed,
    made_once,
    refuse_inside,
    scan_source,
    split_batches,
    trained_tokenizer,
)
from training.data.reporter import Reporter
from training.data.sources import Source, open_source
from training.data.staging import commit, staging
from training.data.token_shards import SplitWriter
from training.data.tokenizer import TextTokenizer
from training.data.workers import encoding, processors

KIND = "sentence pairs"
# With less text than this, starting processes takes longer than they save.
PROCESSES_BYTES = 8 * 1024 * 1024
_Ids = npt.NDArray[Any]


def prepare_pairs(
    source: str,
    text_field: str,
    heldout_fraction: float,
    tokenizer: str,
    vocab_size: int,
    sequence_length: int,
    root: Path,
    progress: Callable[[str], None],
    workers: int | None = None,
    shared: Path | None = None,
) -> Path:
    """Return the dataset directory for this source and these settings: that under `shared` if it is there,
    else that under `root`, which is created if it is missing.

    Samples are made for one sequence length. The rest is as in `training.data.prepare_tokens`, but a
    preparation that was killed starts from scratch.
    """
    root = Path(root)
    found = open_source(source, text_field)
    given = None if tokenizer == "train" else tokenizers_.given_files(tokenizer)
    settings = {
        "kind": KIND,
        "source": found.name,
        "text_field": text_field,
        "heldout_fraction": heldout_fraction,
        "tokenizer": "train" if given is None else tokenizers_.fingerprint(given),
        "vocab_size": vocab_size,
        "sequence_length": sequence_length,
    }
    target = root / directory_name(found, settings)
    refuse_inside(source, root)
    return made_once(
        target,
        lambda: _make(found, source, settings, (tokenizer, given), target, Reporter(progress), workers),
        shared,
    )


def _make(
    source: Source,
    path: str,
    settings: dict[str, Any],
    tokenizer: tuple[str, dict[str, bytes] | None],
    target: Path,
    reporter: Reporter,
    workers: int | None,
) -> None:
    begun = time.monotonic()
    with staging(target.parent, target.name) as directory:
        reporter.say(f"reading {source.describe()}")
        scan = scan_source(source, settings["heldout_fraction"], reporter)
        words = _tokenizer(source, scan, settings["vocab_size"], *tokenizer, reporter)
        vocabulary = wordpiece.vocabulary_of(tokenizer[0], words.tokenizer)
        summary = _write(source, scan, words, vocabulary, settings, directory, reporter, workers)
        if source.fingerprint() != open_source(path, source.text_field).fingerprint():
            raise DataError(f"data source {path} changed while it was read; start again")
        if not commit(directory, target):
            summary = "another process finished the same dataset first; using its result"
    reporter.say(f"{target.name}: {summary}; {time.monotonic() - begun:.1f} s")


def _tokenizer(
    source: Source, scan: Scan, vocab_size: int, name: str, given: dict[str, bytes] | None, reporter: Reporter
) -> TextTokenizer:
    if given is not None:
        return tokenizers_.load(name, given, vocab_size)
    return trained_tokenizer(source, scan, vocab_size, wordpiece.train, reporter)


def _write(
    source: Source,
    scan: Scan,
    tokenizer: TextTokenizer,
    vocabulary: wordpiece.Vocabulary,
    settings: dict[str, Any],
    directory: Path,
    reporter: Reporter,
    workers: int | None,
) -> str:
    """Write the dataset into `directory`, the index last; return a summary in words."""
    dtype = token_shards.token_dtype(tokenizer.vocabulary)
    room = settings["sequence_length"] - FRAME
    tokens = {name: SplitWriter(directory, name, dtype, tokenizer.vocabulary) for name in (TRAIN, HELDOUT)}
    pairs = {name: PairWriter(directory, name, room) for name in (TRAIN, HELDOUT)}
    count = workers or (processors() if scan.counts.bytes >= PROCESSES_BYTES else 1)
    make = functools.partial(sentence_encoder, tokenizer.files, tokenizer.vocabulary, room // 2, dtype)
    done = 0

    def text() -> str:
        return f"tokenized {done / 2**20:,.1f} of {scan.counts.bytes / 2**20:,.1f} MiB"

    with ExitStack() as stack:
        for name in (TRAIN, HELDOUT):
            stack.enter_context(tokens[name])
            stack.enter_context(pairs[name])
        encode = stack.enter_context(encoding(make, count, reporter))
        for (split, sizes), (lengths, ids) in encode(keyed(split_batches(source, scan)), text):
            kept = [(size, pieces) for size, pieces in zip(sizes, lengths, strict=True) if pieces]
            for _, pieces in kept:
                pairs[split].append(pieces)
            tokens[split].append([sum(pieces) for _, pieces in kept], ids, sum(size for size, _ in kept))
            done += sum(sizes)
            reporter.tick(text)
        _check_enough(source, pairs, settings)
        files = {name: entry for writer in pairs.values() for name, entry in writer.finish().items()}
        splits = {name: writer.finish() for name, writer in tokens.items()}
    tokenizer.write(directory / TOKENIZER)
    for name in tokenizer.files:
        files[f"{TOKENIZER}/{name}"] = token_shards.entry_of(directory / TOKENIZER / name)
    counts = scan.counts
    index = Index(
        format=FORMAT,
        settings=settings,
        source={"duplicates": counts.duplicates, "empty": counts.empty, "not_text": counts.not_text},
        vocabulary=tokenizer.vocabulary,
        bos=vocabulary.cls,
        eos=vocabulary.sep,
        dtype=dtype,
        unigram_nats=entropy(tokens[HELDOUT].token_counts),
        splits=splits,
        files={**files, **tokens[TRAIN].files, **tokens[HELDOUT].files},
    )
    (directory / INDEX).write_text(index.to_json())
    return (
        f"{splits[TRAIN].documents + splits[HELDOUT].documents:,} documents, "
        f"{splits[TRAIN].tokens + splits[HELDOUT].tokens:,} tokens, {splits[HELDOUT].tokens:,} held out; "
        f"{pairs[TRAIN].samples + pairs[HELDOUT].samples:,} samples of {settings['sequence_length']}"
    )


def sentence_encoder(
    files: dict[str, bytes], vocab_size: int, longest: int, dtype: str
) -> Callable[[Sequence[str]], tuple[list[list[int]], _Ids]]:
    """Return a function that turns texts into the lengths of their sentences and all tokens in one array.

    A sentence of more than `longest` tokens counts as several, so that any two neighbours fit into a
    sequence. The function raises DataError if plain text becomes a special token.
    """
    tokenizer = tokenizers_.load("of the dataset", files, vocab_size)
    ordinary = wordpiece.vocabulary_of("of the dataset", tokenizer.tokenizer).ordinary

    def encode(texts: Sequence[str]) -> tuple[list[list[int]], _Ids]:
        sentences = [list(sentences_of(text)) for text in texts]
        every = list(chain.from_iterable(sentences))
        found = tokenizer.tokenizer.encode_batch_fast(every, add_special_tokens=False)
        ids = [encoding.ids for encoding in found]
        tokens = np.fromiter(chain.from_iterable(ids), dtype)
        if not ordinary[tokens].all():
            text = next(text for text, own in zip(every, ids, strict=True) if not ordinary[own].all())
            raise DataError(f"tokenizer: plain text becomes a special token in {text[:60]!r}...")
        lengths = iter(map(len, ids))
        return [[n for _ in own for n in _pieces(next(lengths), longest)] for own in sentences], tokens

    return encode


def _pieces(length: int, longest: int) -> list[int]:
    """Return the lengths of the pieces of a sentence."""
    if length <= longest:
        return [length] if length else []
    return [longest] * (length // longest) + ([length % longest] if length % longest else [])


def _check_enough(source: Source, pairs: dict[str, PairWriter], settings: dict[str, Any]) -> None:
    for split, writer in pairs.items():
        if writer.documents < 2 or not writer.samples:
            raise DataError(
                f"data source {source.name}: {writer.documents} documents with {writer.samples} pairs of "
                f"sentences in the split '{split}'; each split needs two documents, because the second "
                "sentence may come from another one: use more text, or change data.heldout_fraction "
                f"({settings['heldout_fraction']})"
            )
