"""Measure how fast text becomes token shards, against `datasets.map` with the same tokenizer, as a table.

python -m tests.cli.bench_data

The text is Python's own library as compressed JSON lines in eight files, the tokenizer a byte-level BPE of
4,096 tokens trained on a part of it. Both read the same files and use all processors; both results are on
disk at the end, and their tokens are compared one by one. Importing `datasets` is not counted.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tools.core import output
from training.data import tokenizer as tokenizers_
from training.data.index import read_index
from training.data.prepare_tokens import prepare_tokens
from training.data.sources import STDLIB, open_source
from training.data.workers import processors

PRINTED = "{:<44}{:>14}"
_Result = TypeVar("_Result")
VOCABULARY, SHARDS, TRAINED_ON = 4096, 8, 300


def measure(directory: Path, documents: int | None = None) -> list[tuple[str, str]]:
    """Prepare the text both ways below `directory` and return the table's rows.

    `documents` limits the text. Raises AssertionError when the tokens differ.
    """
    import datasets

    datasets.disable_progress_bars()
    files, tokenizer = _inputs(directory, documents)
    made, ours = _timed(lambda: _ours(directory, tokenizer))
    mapped, theirs = _timed(lambda: _theirs(directory, files, tokenizer))
    our_tokens, their_tokens = _tokens_of(made), [np.array(row, "<u2").tobytes() for row in mapped["ids"]]
    assert sorted(our_tokens) == sorted(their_tokens), "the two do not make the same tokens"
    tokens = sum(map(len, our_tokens)) // 2
    return [
        ("documents", f"{len(our_tokens):,}"),
        ("tokens", f"{tokens:,}"),
        ("processors", f"{processors()}"),
        ("seconds, yard data prepare", f"{ours[0]:.1f}"),
        ("seconds, datasets.map", f"{theirs[0]:.1f}"),
        ("processor seconds, yard data prepare", f"{ours[1]:.1f}"),
        ("processor seconds, datasets.map", f"{theirs[1]:.1f}"),
        ("tokens/s, yard data prepare", f"{tokens / ours[0]:,.0f}"),
        ("tokens/s, datasets.map", f"{tokens / theirs[0]:,.0f}"),
        ("ratio", f"{theirs[0] / ours[0]:.2f}"),
    ]


def _timed(action: Callable[[], _Result]) -> tuple[_Result, tuple[float, float]]:
    """Return the result, its seconds, and its processor seconds including child processes."""
    before, begun = os.times(), time.perf_counter()
    result = action()
    seconds, after = time.perf_counter() - begun, os.times()
    return result, (seconds, sum(after[:4]) - sum(before[:4]))


def _inputs(directory: Path, documents: int | None) -> tuple[list[str], Path]:
    texts = [document.text for document in islice(open_source(STDLIB).documents(), documents)]
    shards = directory / "shards"
    shards.mkdir()
    for number in range(SHARDS):
        with gzip.open(shards / f"part-{number}.jsonl.gz", "wt", compresslevel=1, encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts[number::SHARDS])
    tokenizers_.train(iter(texts[:TRAINED_ON]), VOCABULARY).write(directory / "tokenizer")
    return sorted(map(str, shards.iterdir())), directory / "tokenizer"


def _ours(directory: Path, tokenizer: Path) -> Path:
    return prepare_tokens(
        str(directory / "shards"), "text", 0.02, str(tokenizer), VOCABULARY, directory / "prepared",
        lambda line: None, workers=processors(),
    )  # fmt: skip


def _tokens_of(dataset: Path) -> list[bytes]:
    """Return each document's tokens without its frame."""
    index = read_index(dataset)
    found: list[bytes] = []
    for split in index.splits.values():
        stream = np.concatenate([np.fromfile(dataset / name, index.dtype) for name in split.shards])
        starts = np.load(dataset / split.starts).astype(np.int64)
        found += [part[1:-1].astype("<u2").tobytes() for part in np.split(stream, starts[1:])]
    return found


def _theirs(directory: Path, files: Sequence[str], tokenizer: Path) -> Any:
    """Return the same as a dataset of `datasets`: load, map over all processors, Arrow files on disk."""
    from datasets import load_dataset

    loaded = load_dataset("json", data_files=list(files), split="train", cache_dir=str(directory / "cache"))
    known = {"tokenizer": str(tokenizer / "tokenizer.json")}
    return loaded.map(encode, batched=True, num_proc=processors(), remove_columns=["text"], fn_kwargs=known)


def encode(batch: dict[str, list[str]], tokenizer: str) -> dict[str, list[list[int]]]:
    """Tokenise a batch of `datasets.map` with the library's fastest call."""
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_file(tokenizer).encode_batch_fast(batch["text"], add_special_tokens=False)
    return {"ids": [encoding.ids for encoding in encoded]}


if __name__ == "__main__":
    work = Path(tempfile.mkdtemp(prefix="trainyard-bench-"))
    try:
        output.note("about a minute on two processors")
        for label, value in measure(work):
            output.line(PRINTED.format(label, value))
    finally:
        shutil.rmtree(work)
