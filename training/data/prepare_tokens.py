"""Turns documents into a dataset directory: scan, tokenizer, tokens, index, one rename.

The bytes of a dataset depend only on its documents and settings, not on times, paths or thread counts, so
two machines that prepare the same text get the same dataset. The directory's name is derived from the
settings and the names, sizes and times of the source's files, so an existing dataset is found without
reading the source.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.data import token_shards
from training.data import tokenizer as tokenizers_
from training.data.errors import DataError, reason
from training.data.index import (
    FORMAT,
    HELDOUT,
    INDEX,
    TOKENIZER,
    TRAIN,
    FileEntry,
    Index,
    Split,
    check_sizes,
    read_index,
    verify,
)
from training.data.journal import Journal
from training.data.readers import OTHER_TABLES, Document
from training.data.remote_files import is_remote
from training.data.reporter import Reporter
from training.data.sources import STDLIB, Counts, Source, open_source, path_of
from training.data.staging import commit, staging, sweep
from training.data.token_shards import SplitWriter
from training.data.workers import encoding, processors

__all__ = ["prepare_tokens", "verify"]

# More text than this hardly changes a vocabulary of a few thousand tokens, but takes more time and memory.
TOKENIZER_BYTES = 64 * 1024 * 1024
_BYTES_PER_TOKEN = 2048  # of text for each entry of the vocabulary: more changes few merges and takes longer
_SLICE_CHARACTERS = 1 << 14
_BATCH_CHARACTERS = 1 << 20
# With less text than this, starting processes takes longer than they save.
PROCESSES_BYTES = 64 * 1024 * 1024
_SCALE = 1 << 64
_SEPARATOR = "<|endoftext|>"  # between the documents of many published files of text
Batch = tuple[str, list[int]]
"""A batch of documents: its split, and the size of each in bytes."""


@dataclass(frozen=True)
class _Plan:
    """What will be prepared; no document has been read yet."""

    path: str
    source: Source
    settings: dict[str, Any]
    tokenizer: str
    given: dict[str, bytes] | None
    name: str
    workers: int | None


@dataclass(frozen=True)
class Scan:
    """The result of the first pass: counts, and the hash below which documents are held out."""

    counts: Counts
    heldout_below: int
    heldout_documents: int

    def is_heldout(self, digest: bytes) -> bool:
        return _hash(digest) < self.heldout_below


def prepare_tokens(
    source: str,
    text_field: str,
    heldout_fraction: float,
    tokenizer: str,
    vocab_size: int,
    root: Path,
    progress: Callable[[str], None],
    first_bytes: int | None = None,
    workers: int | None = None,
    shared: Path | None = None,
) -> Path:
    """Return the dataset directory for this source and these settings: that under `shared` if it is there,
    else that under `root`, which is created if it is missing.

    `tokenizer` is "train", or a directory or tokenizer.json. `progress` gets lines of text, at least one
    every two seconds of work. With `first_bytes` only the source's first documents are used, that many bytes
    of text. `workers` is the number of processes that tokenise a large source, by default one per processor.
    Raises DataError. A preparation that fails or is killed leaves nothing that can be read as a dataset; a
    killed one is continued by the next call.
    """
    root = Path(root)
    plan = _plan(source, text_field, heldout_fraction, tokenizer, vocab_size, first_bytes, workers)
    refuse_inside(source, root)
    return made_once(root / plan.name, lambda: _make(plan, root, Reporter(progress)), shared)


def made_once(target: Path, make: Callable[[], None], shared: Path | None) -> Path:
    """Return the dataset directory of the name of `target`: under `shared`, where nothing is written, or else
    `target`, which is created if it is missing. Raises DataError.
    """
    if shared is not None and (shared / target.name / INDEX).is_file():
        return _checked(shared / target.name)
    try:
        sweep(target.parent)
        if not target.exists():
            make()
    except OSError as error:
        where = f" ({Path(error.filename).name})" if isinstance(error.filename, str) else ""
        raise DataError(f"cannot write the dataset under {target.parent}{where}: {reason(error)}") from error
    return _checked(target)


def _checked(directory: Path) -> Path:
    check_sizes(directory, read_index(directory))
    return directory


def refuse_inside(source: str, root: Path) -> None:
    """Refuse a source directory that contains `root`: each dataset would be part of the next one's text."""
    for part in source.split("\n"):
        local = part and part != STDLIB and not is_remote(part)
        if local and root.resolve().is_relative_to(path_of(part).resolve()):
            raise DataError(f"data source {part} contains the datasets' directory {root}; name a directory below it")


def _make(plan: _Plan, root: Path, reporter: Reporter) -> None:
    source = plan.source
    with staging(root, plan.name, adopt=True) as directory:
        journal = Journal(directory)
        summary = _build(plan, directory, journal, reporter)
        if not source.remote and source.fingerprint() != open_source(plan.path, source.text_field).fingerprint():
            raise DataError(f"data source {plan.path} changed while it was read; start again")
        journal.close()
        if not commit(directory, root / plan.name):
            summary = "another process finished the same dataset first; using its result"
    reporter.say(f"{plan.name}: {summary}")


def _plan(
    source: str,
    text_field: str,
    heldout_fraction: float,
    tokenizer: str,
    vocab_size: int,
    first_bytes: int | None,
    workers: int | None,
) -> _Plan:
    if not 0 < heldout_fraction < 1:
        raise DataError(f"held-out fraction {heldout_fraction} is not between 0 and 1")
    if tokenizer == "train" and vocab_size < tokenizers_.LEAST_VOCABULARY:
        least = f"at least {tokenizers_.LEAST_VOCABULARY}: 256 bytes and 2 special tokens"
        raise DataError(f"vocab_size {vocab_size} is too small for a byte-level tokenizer ({least})")
    found = open_source(source, text_field)
    given = None if tokenizer == "train" else tokenizers_.given_files(tokenizer)
    settings = {
        "source": found.name,
        "text_field": text_field,
        "heldout_fraction": heldout_fraction,
        "tokenizer": "train" if given is None else tokenizers_.fingerprint(given),
        "vocab_size": vocab_size,
    }
    if first_bytes is not None:
        settings["first_bytes"] = first_bytes
    return _Plan(source, found, settings, tokenizer, given, directory_name(found, settings), workers)


def directory_name(source: Source, settings: dict[str, Any]) -> str:
    """Return the name of the dataset for these settings and the source's present files."""
    key = json.dumps([FORMAT, settings, source.fingerprint()], sort_keys=True)
    stem = re.sub(r"[^a-z0-9]+", "-", source.name.lower()).strip("-")[:40] or "data"
    return f"{stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _build(plan: _Plan, directory: Path, journal: Journal, reporter: Reporter) -> str:
    """Write the dataset into `directory`, the index last; return a summary in words."""
    begun = time.monotonic()
    reporter.say(f"reading {plan.source.describe()}")
    source = _at_hand(plan, journal, reporter)
    try:
        scan, tokenizer, writers = _resumed(plan, directory, journal.saved)
        reporter.say(f"continuing after {sum(journal.saved['documents'].values()):,} documents")
    except (KeyError, ValueError, TypeError, OSError, DataError):  # nothing to continue, or it is damaged
        journal.forget()
        scan = scan_source(source, plan.settings["heldout_fraction"], reporter)
        scanned = time.monotonic()
        tokenizer = _tokenizer(plan, source, scan, reporter)
        tokenizer.write(directory / TOKENIZER)
        writers = _writers(directory, tokenizer)
    else:
        scanned = time.monotonic()
    trained = time.monotonic()
    index = _write_tokens(plan, source, scan, tokenizer, writers, journal, reporter)
    written = {f"{TOKENIZER}/{name}": token_shards.entry_of(directory / TOKENIZER / name) for name in tokenizer.files}
    (directory / INDEX).write_text(replace(index, files={**index.files, **written}).to_json())
    train, heldout = index.splits[TRAIN], index.splits[HELDOUT]
    return (
        f"{train.documents + heldout.documents:,} documents, {(train.bytes + heldout.bytes) / 2**20:,.1f} MiB, "
        f"{train.tokens + heldout.tokens:,} tokens, {heldout.tokens:,} of them held out; "
        f"scan {scanned - begun:.1f} s, tokenizer {trained - scanned:.1f} s, "
        f"tokens {time.monotonic() - trained:.1f} s"
    )


def _at_hand(plan: _Plan, journal: Journal, reporter: Reporter) -> Source:
    """Return the source as local files, because they are read more than once."""
    first = plan.settings.get("first_bytes")
    if first is not None:
        return journal.first_part(plan.source, first, reporter)
    return journal.fetch(plan.source, reporter) if plan.source.remote else plan.source


def _writers(directory: Path, tokenizer: tokenizers_.TextTokenizer) -> dict[str, SplitWriter]:
    dtype, vocabulary = token_shards.token_dtype(tokenizer.vocabulary), tokenizer.vocabulary
    return {name: SplitWriter(directory, name, dtype, vocabulary) for name in (TRAIN, HELDOUT)}


def _resumed(
    plan: _Plan, directory: Path, saved: dict[str, Any]
) -> tuple[Scan, tokenizers_.TextTokenizer, dict[str, SplitWriter]]:
    """Load the state of a killed preparation. Raises if there is none, or if it has changed."""
    scan = Scan(Counts(**saved["scan"]["counts"]), saved["scan"]["below"], saved["scan"]["heldout"])
    files = tokenizers_.given_files(str(directory / TOKENIZER))
    if tokenizers_.fingerprint(files) != saved["tokenizer"]:
        raise ValueError("the tokenizer has changed")
    tokenizer = tokenizers_.load(plan.tokenizer, files, plan.settings["vocab_size"], padded=True)
    writers = _writers(directory, tokenizer)
    for name, writer in writers.items():
        writer.resume(saved["splits"][name])
    return scan, tokenizer, writers


def scan_source(source: Source, heldout_fraction: float, reporter: Reporter) -> Scan:
    """Read everything once, so that bad rows are found early, and choose the hash that divides the splits.

    A document is held out if its hash is below `heldout_fraction` of the hashes' range. In a small source
    that may be no document or all of them: then the one with the smallest hash is held out, or the one with
    the largest is not.
    """
    counts = Counts()
    if tables := _tables(source):
        reporter.say(f"{tables} is read as plain text, not as rows: convert it to .jsonl or .parquet for its rows")
    below = int(heldout_fraction * _SCALE)
    least, most, heldout, marked = _SCALE, -1, 0, 0
    for document in source.documents(counts):
        marked += _SEPARATOR in document.text
        value = _hash(document_digest(document))
        least, most = min(least, value), max(most, value)
        heldout += value < below
        reporter.tick(lambda: f"read {counts.documents:,} documents, {counts.bytes / 2**20:,.1f} MiB")
    skipped = f" ({counts.skipped()})" if counts.skipped() else ""
    if counts.documents == 0:
        raise DataError(f"data source {source.name}: no documents{skipped} in {source.describe()}")
    if least == most:
        found = "one document" if counts.documents == 1 else "only copies of one document"
        raise DataError(
            f"data source {source.name}: {found}{skipped}; at least two are needed, because one is held out"
            f"{f' ({tables} is not read as rows: convert it to .jsonl or .parquet)' if tables else ''}"
        )
    if heldout == 0:
        below, heldout = least + 1, 1
    elif heldout == counts.documents:
        below, heldout = most, heldout - 1
    reporter.say(
        f"{counts.documents:,} documents, {counts.bytes / 2**20:,.1f} MiB, {heldout:,} held out by hash"
        + (f"; left out: {counts.skipped()}" if skipped else "")
    )
    if marked:
        reporter.say(
            f"{marked:,} of them hold {_SEPARATOR}, which is text here and ends no document: "
            "put each document into a row of .jsonl"
        )
    return Scan(counts, below, heldout)


def _tables(source: Source) -> str:
    """Return the kinds of files of a source that are all tables in a format that is not read as rows; else nothing."""
    tables = all(file.name.lower().endswith(OTHER_TABLES) for file in source.data)
    return ", ".join(sorted({Path(file.name).suffix for file in source.data})) if tables else ""


def document_digest(document: Document) -> bytes:
    """Return the digest of a document's text; equal documents are in the same split."""
    return hashlib.sha256(document.data).digest()


def _hash(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


def _tokenizer(plan: _Plan, source: Source, scan: Scan, reporter: Reporter) -> tokenizers_.TextTokenizer:
    vocab_size = plan.settings["vocab_size"]
    if plan.given is not None:
        return tokenizers_.load(plan.tokenizer, plan.given, vocab_size, padded=True)
    return trained_tokenizer(source, scan, vocab_size, lambda texts, size: tokenizers_.train(texts(), size), reporter)


def trained_tokenizer(
    source: Source,
    scan: Scan,
    vocab_size: int,
    train: Callable[[Callable[[], Iterator[str]], int], tokenizers_.TextTokenizer],
    reporter: Reporter,
) -> tokenizers_.TextTokenizer:
    """Train a tokenizer with `train` on the training documents' texts, or on a sample of them.

    The sample has 2 KiB for each token of the vocabulary, and at most TOKENIZER_BYTES.
    """
    share = min(1.0, min(TOKENIZER_BYTES, vocab_size * _BYTES_PER_TOKEN) / scan.counts.bytes)
    of_what = "the training documents" if share == 1 else f"{share:.1%} of the training documents"
    stopped: list[bool] = []
    begun = time.monotonic()

    def text() -> str:
        return f"training a tokenizer of {vocab_size:,} tokens on {of_what}: {time.monotonic() - begun:.0f} s"

    def texts() -> Iterator[str]:
        for document in source.documents():
            if stopped:
                return
            digest = document_digest(document)
            if not scan.is_heldout(digest):
                yield from slices_of(document.text, digest, share)

    reporter.say(text())
    return reporter.during(lambda: train(texts, vocab_size), text, stop=lambda: stopped.append(True))


def slices_of(text: str, digest: bytes, share: float) -> Iterator[str]:
    """Yield evenly spaced slices, `share` of the text in total; the digest decides which ones."""
    if share == 1:
        yield text
        return
    phase = _hash(digest[8:]) / _SCALE
    for number, start in enumerate(range(0, len(text), _SLICE_CHARACTERS)):
        if int((number + 1) * share + phase) > int(number * share + phase):
            yield text[start : start + _SLICE_CHARACTERS]


def _write_tokens(
    plan: _Plan,
    source: Source,
    scan: Scan,
    tokenizer: tokenizers_.TextTokenizer,
    writers: dict[str, SplitWriter],
    journal: Journal,
    reporter: Reporter,
) -> Index:
    dtype = token_shards.token_dtype(tokenizer.vocabulary)
    done, number = journal.saved.get("done", 0), journal.saved.get("batches", 0)

    def text() -> str:
        return f"tokenized {done / 2**20:,.1f} of {scan.counts.bytes / 2**20:,.1f} MiB"

    batches = itertools.islice(split_batches(source, scan), number, None)
    count = plan.workers or (processors() if scan.counts.bytes >= PROCESSES_BYTES else 1)
    make = functools.partial(tokenizers_.document_encoder, tokenizer.files, tokenizer.vocabulary, dtype)
    with writers[TRAIN], writers[HELDOUT], encoding(make, count, reporter) as encode:
        for (split, sizes), (lengths, tokens) in encode(keyed(batches), text):
            writers[split].append(lengths, tokens, sum(sizes))
            done, number = done + sum(sizes), number + 1
            reporter.tick(text)
            if journal.due():
                journal.write(_entry(scan, tokenizer, writers, done, number))
        splits: dict[str, Split] = {name: writer.finish() for name, writer in writers.items()}
    files: dict[str, FileEntry] = {**writers[TRAIN].files, **writers[HELDOUT].files}
    counts = writers[HELDOUT].token_counts
    counts[tokenizer.bos] -= splits[HELDOUT].documents
    return Index(
        format=FORMAT,
        settings={**plan.settings, "heldout_below": scan.heldout_below},
        source={
            "duplicates": scan.counts.duplicates,
            "empty": scan.counts.empty,
            "not_text": scan.counts.not_text,
        },
        vocabulary=tokenizer.vocabulary,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        dtype=dtype,
        unigram_nats=entropy(counts),
        splits=splits,
        files=files,
    )


def _entry(
    scan: Scan, tokenizer: tokenizers_.TextTokenizer, writers: dict[str, SplitWriter], done: int, batches: int
) -> dict[str, Any]:
    """Flush the writers' files to disk and return what `_resumed` needs."""
    splits = {name: writer.checkpoint() for name, writer in writers.items()}
    return {
        "scan": {
            "counts": asdict(scan.counts), "below": scan.heldout_below, "heldout": scan.heldout_documents,
        },
        "tokenizer": tokenizers_.fingerprint(tokenizer.files),
        "splits": splits,
        "documents": {name: split["documents"] for name, split in splits.items()},
        "done": done,
        "batches": batches,
    }  # fmt: skip


def keyed(batches: Iterator[tuple[str, list[Document]]]) -> Iterator[tuple[Batch, list[str]]]:
    """Yield each batch's split and the sizes of its documents, in bytes, with their texts."""
    for split, batch in batches:
        yield (split, [len(document.data) for document in batch]), [document.text for document in batch]


def split_batches(source: Source, scan: Scan) -> Iterator[tuple[str, list[Document]]]:
    """Yield each split's documents in order, in batches large enough to keep every core busy."""
    waiting: dict[str, list[Document]] = {TRAIN: [], HELDOUT: []}
    characters = {TRAIN: 0, HELDOUT: 0}
    for document in source.documents():
        split = HELDOUT if scan.is_heldout(document_digest(document)) else TRAIN
        waiting[split].append(document)
        characters[split] += len(document.text)
        if characters[split] >= _BATCH_CHARACTERS:
            yield split, waiting[split]
            waiting[split], characters[split] = [], 0
    yield from ((split, documents) for split, documents in waiting.items() if documents)


def entropy(counts: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    """Return the entropy in nats of the distribution of these counts, to six digits."""
    shares = counts[counts > 0] / counts.sum()
    return round(float(-(shares * np.log(shares)).sum()), 6)
