"""Turns rows into a dataset of samples: scan, encode, cut, pack, index, one rename.

For each split the dataset holds the examples' tokens and first positions, as every dataset does, and also
which tokens are learned and which examples make up each sample. Its bytes depend only on rows and settings.
Rows are read twice, one at a time; lengths and spans are kept in memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from training.data import token_shards
from training.data import tokenizer as tokenizers_
from training.data.errors import DataError
from training.data.examples.encode import Encoded, Encoder
from training.data.examples.example import Example, example_of
from training.data.examples.formats import BadRow, Shape
from training.data.examples.packing import Overlong, cut
from training.data.examples.rows import Rows, open_rows
from training.data.examples.template import Learn, template_of
from training.data.examples.writer import ExampleWriter
from training.data.index import FORMAT, HELDOUT, INDEX, TOKENIZER, TRAIN, Index
from training.data.prepare_tokens import entropy, made_once, refuse_inside
from training.data.reporter import Reporter
from training.data.staging import commit, staging

_AT_ONCE = 256  # examples encoded in one call, on all cores
_SCALE = 1 << 64


@dataclass(frozen=True)
class ExampleSettings:
    """The settings of a dataset of examples; `tokenizer` is a directory or a tokenizer.json."""

    source: str
    text_field: str
    heldout_fraction: float
    tokenizer: str
    chat_template: str
    vocab_size: int
    sequence_length: int
    packing: bool
    overlong: Overlong
    bad_rows: Literal["error", "skip"]
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    learn: Learn | None = None

    def newer(self) -> dict[str, Any]:
        """Return the later settings that are given, so that older datasets keep their names."""
        later = {"format": self.format, "columns": dict(self.columns), "learn": self.learn}
        return {key: value for key, value in later.items() if value}


@dataclass(frozen=True)
class Plan:
    """What will be prepared; no row has been read yet."""

    settings: ExampleSettings
    rows: Rows
    tokenizer: tokenizers_.TextTokenizer
    encoder: Encoder
    made_of: dict[str, Any]
    fingerprint: object
    name: str

    def examples(self, counts: Counter[str]) -> Iterator[Example]:
        """Yield the rows' examples; a bad row raises DataError or is counted."""
        settings = self.settings
        shape = Shape(settings.text_field, settings.format, settings.columns)
        for row in self.rows.read():
            try:
                if isinstance(row, BadRow):
                    raise row
                yield example_of(row.where, row.fields, shape)
            except BadRow as error:
                self.bad(error, counts)

    def ends(self, encoded: Encoded) -> bool:
        """Return whether the last learned token ends a turn: without one the model never learns to stop."""
        last = encoded.tokens[encoded.learned][-1:].tolist()
        return last == [self.tokenizer.eos] or self.tokenizer.tokenizer.get_added_tokens_decoder().keys() >= set(last)

    def bad(self, error: BadRow, counts: Counter[str]) -> None:
        """Count a bad row or raise DataError, depending on `data.bad_rows`."""
        if self.settings.bad_rows == "error":
            raise DataError(f"{error} (data.bad_rows: skip leaves such rows out)") from None
        counts["bad_rows"] += 1


def prepare_examples(
    settings: ExampleSettings, root: Path, progress: Callable[[str], None], shared: Path | None = None
) -> Path:
    """Return the dataset directory for these settings: that under `shared` if it is there, else that under
    `root`, which is created if it is missing.

    `progress` gets lines of text, at least one every two seconds of work. Raises DataError. A preparation
    that fails or is killed leaves nothing that can be read as a dataset.
    """
    root, plan = Path(root), plan_of(settings)
    refuse_inside(settings.source, root)
    return made_once(root / plan.name, lambda: _make(plan, root, Reporter(progress)), shared)


def plan_of(settings: ExampleSettings) -> Plan:
    """Find source, tokenizer and template; DataError if one of them cannot be used."""
    if settings.sequence_length < 2:
        raise DataError(f"sequence_length {settings.sequence_length} is too short for a token and its label")
    rows = open_rows(settings.source, settings.text_field)
    given = tokenizers_.given_files(settings.tokenizer)
    tokenizer = tokenizers_.load(settings.tokenizer, given, settings.vocab_size, padded=True)
    template = template_of(settings.tokenizer, tokenizer, settings.chat_template)
    template.check(settings.learn)
    encoder = Encoder(tokenizer, template, token_shards.token_dtype(tokenizer.vocabulary), settings.learn)
    fingerprint = rows.fingerprint()
    made_of = {
        "source": rows.name,
        "text_field": settings.text_field,
        "heldout_fraction": settings.heldout_fraction,
        "tokenizer": tokenizers_.fingerprint(given),
        "chat_template": template.digest(),
        **template.day,
        "vocab_size": settings.vocab_size,
        "sequence_length": settings.sequence_length,
        "packing": settings.packing,
        "overlong": settings.overlong,
        "bad_rows": settings.bad_rows,
        **settings.newer(),
        **({"joined": True} if encoder.joins else {}),
    }
    key = json.dumps([FORMAT, "examples", made_of, fingerprint], sort_keys=True)
    stem = re.sub(r"[^a-z0-9]+", "-", rows.name.lower()).strip("-")[:40] or "data"
    name = f"{stem}-examples-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return Plan(settings, rows, tokenizer, encoder, made_of, fingerprint, name)


def _make(plan: Plan, root: Path, reporter: Reporter) -> None:
    with staging(root, plan.name) as directory:
        summary = _build(plan, directory, reporter)
        if plan.fingerprint != plan.rows.fingerprint():
            raise DataError(f"data source {plan.settings.source} changed while it was read; start again")
        if not commit(directory, root / plan.name):
            summary = "another process finished the same dataset first; using its result"
    reporter.say(f"{plan.name}: {summary}")


def _build(plan: Plan, directory: Path, reporter: Reporter) -> str:
    """Write the dataset into `directory`, the index last; return a summary in words."""
    reporter.say(f"reading {plan.rows.about}")
    heldout_below = _scan(plan, reporter)
    counts: Counter[str] = Counter()
    tokenizer = plan.tokenizer
    dtype = token_shards.token_dtype(tokenizer.vocabulary)
    writers = {name: ExampleWriter(directory, name, dtype, tokenizer.vocabulary) for name in (TRAIN, HELDOUT)}
    with writers[TRAIN], writers[HELDOUT]:
        for group in _groups(plan.examples(counts)):
            heldout = [_hash(example) < heldout_below for example in group]
            for split, writer in writers.items():
                own = [e for e, out in zip(group, heldout, strict=True) if out == (split == HELDOUT)]
                if encoded := _encoded(plan, own, counts):
                    writer.append(encoded)
            reporter.tick(lambda: f"encoded {sum(w.examples for w in writers.values()):,} examples")
        for split, writer in writers.items():
            if not writer.examples:
                more = "; more rows, or a larger data.heldout_fraction" if split == HELDOUT else ""
                raise DataError(
                    f"data source {plan.settings.source}: no {split} example is left ({_words(counts)}{more})"
                )
        length, packing = plan.settings.sequence_length, plan.settings.packing
        splits = reporter.during(
            lambda: {name: writer.finish(length, packing) for name, writer in writers.items()},
            lambda: "packing the examples into samples",
            stop=lambda: None,
        )
    files = {**writers[TRAIN].files, **writers[HELDOUT].files}
    for split, writer in writers.items():
        counts[f"{split}_samples"] = writer.samples
        counts[f"{split}_learned_tokens"] = int(writer.label_counts.sum())
    kept = tokenizer.files
    if counts["chat"]:
        kept = {**kept, tokenizers_.TEMPLATE: plan.encoder.template.text.encode()}
    replace(tokenizer, files=kept).write(directory / TOKENIZER)
    files |= {f"{TOKENIZER}/{name}": token_shards.entry_of(directory / TOKENIZER / name) for name in kept}
    index = Index(
        format=FORMAT,
        settings=plan.made_of,
        source={key: count for key, count in sorted(counts.items()) if key not in _SAID},
        vocabulary=tokenizer.vocabulary,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        dtype=dtype,
        unigram_nats=entropy(writers[HELDOUT].label_counts),
        splits=splits,
        files=files,
    )
    (directory / INDEX).write_text(index.to_json())
    return f"{_shape(writers, plan.settings)}; {_words(counts)}"


def _shape(writers: dict[str, ExampleWriter], settings: ExampleSettings) -> str:
    """Return the number and size of the samples in words."""
    train, heldout = writers[TRAIN], writers[HELDOUT]
    tokens = train.tokens + heldout.tokens
    room = (train.samples + heldout.samples) * settings.sequence_length
    return (
        f"{train.examples:,} examples and {heldout.examples:,} held out, {tokens:,} tokens in "
        f"{train.samples:,} and {heldout.samples:,} samples of {settings.sequence_length:,}, "
        f"{1 - tokens / room:.1%} of them {'left over by packing' if settings.packing else 'padding'}"
    )


def _scan(plan: Plan, reporter: Reporter) -> int:
    """Read all rows once, so that bad ones are found early; return the hash below which rows are held out.

    In a small source the fraction may hold out no row or all of them: then the row with the smallest hash is
    held out, or the one with the largest is not.
    """
    counts: Counter[str] = Counter()
    below = int(plan.settings.heldout_fraction * _SCALE)
    least, most = _SCALE, -1
    formats: set[str] = set()
    for number, example in enumerate(plan.examples(counts), start=1):
        if example.format not in formats:
            formats.add(example.format)
            reporter.say(f"format {example.format}, {example.evidence} ({example.where})")
        value = _hash(example)
        least, most = min(least, value), max(most, value)
        counts["rows"] = number
        reporter.tick(lambda: f"read {counts['rows']:,} rows")
    if least >= most:
        found = "no example" if most < 0 else "only one example, or copies of one"
        left_out = f" ({counts['bad_rows']:,} bad rows left out)" if counts["bad_rows"] else ""
        raise DataError(
            f"data source {plan.settings.source}: {found}{left_out}; at least two are needed, because one is held out"
        )
    return min(max(below, least + 1), most)


def _hash(example: Example) -> int:
    return int.from_bytes(example.digest()[:8], "little")


def _groups(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while group := list(islice(examples, _AT_ONCE)):
        yield group


def _encoded(plan: Plan, examples: list[Example], counts: Counter[str]) -> list[Encoded]:
    """Encode examples, cut those that are too long, and count what happened to them."""
    length, overlong = plan.settings.sequence_length, plan.settings.overlong
    kept: list[Encoded] = []
    for example, encoded in zip(examples, plan.encoder.encode(examples), strict=True):
        if isinstance(encoded, BadRow):
            plan.bad(encoded, counts)
            continue
        counts[example.kind] += 1
        counts["without_end"] += example.kind == "chat" and not plan.ends(encoded)
        counts["special_names"] += plan.encoder.names_special(example)
        counts["border_tokens"] += encoded.border
        parts = [encoded]
        if len(encoded.tokens) > length:
            counts[f"overlong_{overlong}"] += 1
            parts = cut(example.where, encoded, length, overlong)
        with_labels = [part for part in parts if part.learned[1:].any()]
        counts["nothing_to_learn"] += len(parts) - len(with_labels)
        kept += with_labels
    return kept


_SAID = ("special_names", "without_end")  # counts that are not a part of the dataset
_NAMES = {
    "chat": "chats",
    "pair": "prompts with completion",
    "text": "texts",
    "bad_rows": "bad rows left out",
    "overlong_truncate": "too long and truncated",
    "overlong_drop": "too long and left out",
    "overlong_split": "too long and split",
    "nothing_to_learn": "without a token to learn",
    "special_names": "texts that hold the name of a special token, which is read as letters: give chats as messages",
    "without_end": "chats whose answer ends without a special token, so that the model does not learn to stop",
    "border_tokens": "tokens that only partly belong to the assistant",
}


def _words(counts: Counter[str]) -> str:
    """Return in words how many rows of each kind there were, and what was left out."""
    return ", ".join(f"{counts[key]:,} {name}" for key, name in _NAMES.items() if counts[key])
