"""Preparations in several processes, continued after a kill, and over HTTP: always the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from tests.training.data.stream.conftest import ALL_TEXTS, serve, shard_bytes
from training.data import journal, prepare_tokens, retries, workers
from training.data.errors import DataError
from training.data.index import read_index, verify
from training.data.sources import STDLIB, open_source
from training.data.token_shards import SplitWriter
from training.data.tokenizer import TextTokenizer, load, train
from training.data.word_cache import parts_of, word_cache_of

__all__ = ["serve", "shard_bytes"]

_SIDES = ("single_word", "lstrip", "rstrip", "normalized")
# Prepares with an entry in the journal for every batch; stops before the named batch.
SCRIPT = """
import json, sys
from pathlib import Path
from training.data import journal, prepare_tokens, token_shards

settings = json.loads(sys.argv[1])
stop = settings.pop("stop")
journal.EVERY, prepare_tokens._BATCH_CHARACTERS, token_shards.SHARD_TOKENS = 0.0, 4000, 5000
append, number = token_shards.SplitWriter.append, 0

def stopping(*arguments):
    global number
    if number == stop:
        print("reached", flush=True)
        sys.stdin.readline()
    number += 1
    return append(*arguments)

token_shards.SplitWriter.append = stopping
root = Path(settings.pop("root"))
print(prepare_tokens.prepare_tokens(**settings, root=root, progress=lambda line: print(line, flush=True)))
"""


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches and shards from little text."""
    monkeypatch.setattr(prepare_tokens, "_BATCH_CHARACTERS", 4000)
    monkeypatch.setattr("training.data.token_shards.SHARD_TOKENS", 5000)


@pytest.fixture
def stopped(corpus: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a preparation in a process and wait until it stops before a batch."""
    children: list[subprocess.Popen[str]] = []

    def start(stop: int) -> subprocess.Popen[str]:
        settings = {
            "source": str(corpus), "text_field": "text", "heldout_fraction": 0.1, "tokenizer": "train",
            "vocab_size": 512, "root": str(tmp_path / "data"), "stop": stop,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
        children.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line == "reached\n":
                return process
        raise AssertionError("it ended first")

    yield start
    for process in children:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=180)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


def test_processes_make_the_same_bytes(prepared: Callable[..., Path], tmp_path: Path) -> None:
    alone = prepared(workers=1)
    several = prepared(workers=3, root=tmp_path / "several")
    assert contents(alone) == contents(several)
    assert len(read_index(alone).splits["train"].shards) > 3


def test_a_killed_preparation_continues_to_the_same_bytes(
    prepared: Callable[..., Path],
    stopped: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = prepared(root=tmp_path / "whole")
    for stop in (1, 3, 9):
        kill(stopped(stop))
    (leftover,) = (tmp_path / "data").iterdir()
    assert leftover.name.endswith(".preparing")
    done = json.loads((leftover / "journal.json").read_text())
    assert done["batches"] >= 9, "each continued where the one before stopped"
    encoded: list[int] = []
    lines: list[str] = []
    original = TextTokenizer.encode

    def counted(self: TextTokenizer, texts: Sequence[str], dtype: str) -> list[Any]:
        encoded.append(len(texts))
        return original(self, texts, dtype)

    monkeypatch.setattr(TextTokenizer, "encode", counted)
    again = prepared(progress=lines.append)
    assert contents(again) == contents(whole)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [again.name]
    documents = sum(done["documents"].values())
    assert f"continuing after {documents:,} documents" in lines
    assert not any(line.startswith("training a tokenizer") for line in lines)
    total = sum(split.documents for split in read_index(again).splits.values())
    assert sum(encoded) == total - documents, "finished work is not repeated"


@pytest.mark.parametrize("damage", ["shard", "tokenizer", "starts", "journal"])
def test_damaged_leftovers_are_discarded(
    prepared: Callable[..., Path], stopped: Callable[..., Any], tmp_path: Path, damage: str
) -> None:
    whole = prepared(root=tmp_path / "whole")
    kill(stopped(6))
    (leftover,) = (tmp_path / "data").iterdir()
    path = {
        "shard": leftover / "train-00000.bin",
        "tokenizer": leftover / "tokenizer" / "tokenizer.json",
        "starts": leftover / "train-starts.partial",
        "journal": leftover / "journal.json",
    }[damage]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    lines: list[str] = []
    assert contents(prepared(progress=lines.append)) == contents(whole)
    assert not any(line.startswith("going on") for line in lines)


def test_other_preparations_keep_work_that_can_be_continued(
    prepared: Callable[..., Path],
    stopped: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kill(stopped(3))
    (leftover,) = (tmp_path / "data").iterdir()
    other = prepared(vocab_size=400)
    assert sorted((tmp_path / "data").iterdir()) == sorted([leftover, other])
    monkeypatch.setattr("training.data.staging._RESUMABLE_AGE_S", -1)
    prepared(vocab_size=401)
    assert not leftover.exists(), "but not forever"


def test_ctrl_c_keeps_work_that_can_be_continued(
    prepared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(journal, "EVERY", 0.0)
    original, appended = SplitWriter.append, []

    def interrupted(self: SplitWriter, *arguments: Any) -> None:
        appended.append(self)
        if len(appended) == 5:
            raise KeyboardInterrupt
        original(self, *arguments)

    monkeypatch.setattr(SplitWriter, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared()
    assert [path.suffix for path in (tmp_path / "data").iterdir()] == [".preparing"]
    lines: list[str] = []
    verify(prepared(progress=lines.append))
    assert any(line.startswith("continuing after") for line in lines)


def test_a_process_that_ends_early_is_one_error(
    prepared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = workers.Workers._ask

    def killed(self: workers.Workers, texts: Any) -> Any:
        self._processes[0].kill()
        self._processes[0].wait()
        return original(self, texts)

    monkeypatch.setattr(workers.Workers, "_ask", killed)
    with pytest.raises(DataError, match="a tokenising process ended early"):
        prepared(workers=1 + 1)
    assert list((tmp_path / "data").iterdir()) == []


def test_an_error_in_a_process_is_the_same_error(prepared: Callable[..., Path], tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>")).save(str(tmp_path / "all.json"))
    with pytest.raises(DataError, match="plain text becomes a special token"):
        prepared(workers=2, tokenizer=str(tmp_path / "all.json"))


def test_words_are_encoded_as_the_library_encodes_text() -> None:
    documents = [document.text for document in open_source(STDLIB).documents()][:700:10]
    tricky = [
        "",
        " ",
        "\n\n  x",
        "it's WE'LL 'Re  don't",
        "a_b1c 12 3.4e5\t\x0b\x0c\r\n",
        "\x00\x1c\x1f'",
        "x" * 300,
    ]
    tokenizer = train(iter(documents[:20]), 1000)
    assert word_cache_of(tokenizer.tokenizer) is not None
    draw = random.Random(5)
    alphabet = [*"ab1.'_", "é", "—", " ", "  ", "\n", "\n", "\n    ", "\t", "\r\n", "\u00a0", "\u2028", "'s"]
    mixed = ["é" + "".join(draw.choices(alphabet, k=draw.randint(1, 40))) for _ in range(500)]
    assert any(len(parts_of(text)) > 2 for text in mixed)
    texts = [*documents, *tricky, *mixed]
    found = tokenizer.encode(texts, "<u2")
    expected = tokenizer.tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, one, other in zip(texts, found, expected, strict=True):
        assert one[1:-1].tolist() == other.ids, repr(text[:50])


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"added_tokens": [{"id": 9, "content": "the", "special": False, **dict.fromkeys(_SIDES, False)}]},
    ],
    ids=str,
)
def test_other_kinds_of_tokenizers_are_left_to_the_library(change: dict[str, Any]) -> None:
    made = train(iter(["some text and the rest of it"] * 3), 300)
    settings = {**json.loads(made.files["tokenizer.json"]), **change}
    files = {**made.files, "tokenizer.json": json.dumps(settings).encode()}
    assert word_cache_of(Tokenizer.from_str(files["tokenizer.json"].decode())) is None
    assert load("x", made.files, 300)._words is not None, "the control"


def test_files_over_http_make_the_same_bytes_as_files_here(
    prepared: Callable[..., Path], serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(attempts=20, first=0.01, most=0.05, silence=0.3))
    server = serve(share=0.5, seed=2)
    for name, data in server.files.items():
        (tmp_path / name.strip("/")).write_bytes(data)
    lines: list[str] = []
    remote = prepared(server.pattern, progress=lines.append)
    local = prepared(str(tmp_path / "*.gz"))
    verify(remote)
    assert read_index(remote).splits == read_index(local).splits
    assert read_index(remote).digest == read_index(local).digest
    assert sum(split.documents for split in read_index(remote).splits.values()) == len(ALL_TEXTS)
    assert server.faults()
    assert any("attempts failed" in line for line in lines)
    before = len(server.requests)
    assert prepared(server.pattern) == remote
    assert len(server.requests) == before, "a prepared dataset needs no network"


def test_a_dead_url_leaves_nothing(
    prepared: Callable[..., Path], serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(attempts=3, first=0.01, silence=30.0))
    server = serve(dead=frozenset({"/shard-05.jsonl.gz"}))
    with pytest.raises(DataError, match=rf"{server.url}/shard-05\.jsonl\.gz: the server answered 503; gave up"):
        prepared(server.pattern)
    assert list((tmp_path / "data").iterdir()) == []
