"""Datasets: the same bytes for the same text, no special tokens from text, all damage found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from training.data import prepare_tokens, reporter, token_shards
from training.data.bert import wordpiece
from training.data.errors import DataError
from training.data.index import read_index
from training.data.prepare_tokens import verify
from training.data.sources import open_source
from training.data.tokenizer import BOS, EOS, cut_runs, train


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def tokens_of(directory: Path, split: str) -> np.ndarray[Any, Any]:
    index = read_index(directory)
    return np.concatenate([np.fromfile(directory / name, index.dtype) for name in index.splits[split].shards])


def documents_of(directory: Path, split: str) -> list[list[int]]:
    starts = np.load(directory / read_index(directory).splits[split].starts)
    return [part.tolist() for part in np.split(tokens_of(directory, split), starts[1:])]


def test_a_dataset_holds_every_document_once(prepared: Callable[..., Path], corpus: Path) -> None:
    directory = prepared()
    index = verify(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer" / "tokenizer.json"))
    texts = {document.text for document in open_source(str(corpus)).documents()}
    found: list[str] = []
    for split in ("train", "heldout"):
        documents = documents_of(directory, split)
        assert all(document[0] == index.bos and document[-1] == index.eos for document in documents)
        decoded = tokenizer.decode_batch([document[1:-1] for document in documents], skip_special_tokens=False)
        found += decoded
        described = index.splits[split]
        assert described.documents == len(documents) > 0
        assert described.tokens == sum(map(len, documents))
        assert described.bytes == sum(len(text.encode()) for text in decoded)
    assert set(found) == texts
    assert len(found) == len(texts)


def test_the_dataset_describes_itself(prepared: Callable[..., Path]) -> None:
    directory = prepared()
    index = read_index(directory)
    assert (index.vocabulary, index.bos, index.eos, index.dtype) == (512, 0, 1, "<u2")
    assert sum(len(tokens_of(directory, split)) for split in index.splits) == sum(
        split.tokens for split in index.splits.values()
    )
    heldout = tokens_of(directory, "heldout")
    predicted = np.unique(heldout[heldout != index.bos], return_counts=True)[1]
    shares = predicted / predicted.sum()
    assert index.unigram_nats == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-6)
    assert set(index.files) | {"index.json"} == set(contents(directory))
    assert str(directory.parent) not in (directory / "index.json").read_text()


def test_same_text_gives_same_bytes(child: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    runs = [
        child(root=tmp_path / "one", PYTHONHASHSEED="1", RAYON_NUM_THREADS="1", TZ="UTC"),
        child(root=tmp_path / "two", PYTHONHASHSEED="2", RAYON_NUM_THREADS="3", TZ="Asia/Tokyo"),
    ]
    first, second = (Path(run.communicate(timeout=180)[0].strip().splitlines()[-1]) for run in runs)
    assert first.name == second.name
    assert contents(first) == contents(second)
    assert len(contents(first)) == 7


def test_another_copy_of_the_text_gives_the_same_bytes(
    prepared: Callable[..., Path], corpus: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(corpus, tmp_path / "elsewhere" / corpus.name)
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
    first, second = prepared(), prepared(copy)
    assert first != second
    assert contents(first) == contents(second)


def test_a_second_call_reads_nothing(
    prepared: Callable[..., Path], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = prepared()
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    monkeypatch.setattr("training.data.sources.read_file_as_document", None)
    lines: list[str] = []
    assert prepared(progress=lines.append) == directory
    assert lines == []
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    with pytest.raises(TypeError, match="NoneType"):
        prepared(vocab_size=300)


@pytest.mark.parametrize("changed", [{"vocab_size": 400}, {"heldout_fraction": 0.3}, {"text_field": "body"}], ids=str)
def test_other_settings_make_another_dataset(prepared: Callable[..., Path], changed: dict[str, object]) -> None:
    assert prepared(**changed) != prepared()


def test_changed_text_makes_another_dataset(prepared: Callable[..., Path], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "abcd":
        (source / name).write_text(f"Document {name} says hello. " * 20)
    first = prepared(source)
    (source / "a").write_text("Document a says good-by. ".ljust(28) * 20)
    second = prepared(source)
    assert first != second
    assert read_index(first).digest != read_index(second).digest


def test_text_cannot_make_special_tokens(prepared: Callable[..., Path], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"{number}.txt").write_text(f"{BOS}text {number} {EOS} and {BOS}{EOS}" * 10)
    directory = prepared(source)
    index = read_index(directory)
    for split in ("train", "heldout"):
        tokens = tokens_of(directory, split)
        assert np.count_nonzero(tokens == index.bos) == index.splits[split].documents
        assert np.count_nonzero(tokens == index.eos) == index.splits[split].documents
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer" / "tokenizer.json"))
    control = tokenizer.encode((source / "0.txt").read_text()).ids
    assert control.count(index.bos) > 1, "without encode_special_tokens these names become special tokens"


def test_text_is_plain_for_a_model_that_lists_special_tokens(prepared: Callable[..., Path], tmp_path: Path) -> None:
    """A Unigram model has them among its pieces; in HTML <s> strikes a text through."""
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "<", "s", ">", "/", "old", "new"]
    given = Tokenizer(models.Unigram([(piece, -float(at)) for at, piece in enumerate(pieces)], 0))
    given.pre_tokenizer = pre_tokenizers.Metaspace()
    given.add_special_tokens(["<unk>", "<s>", "</s>"])
    given.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "rows.jsonl").write_text('{"text": "<s>old</s> new"}\n{"text": "new"}\n')
    directory = prepared(tmp_path / "rows.jsonl", tokenizer=str(tmp_path / "tokenizer.json"), vocab_size=10)
    both = [documents_of(directory, split)[0] for split in ("train", "heldout")]
    written = {"".join(pieces[number] for number in document[1:-1]) for document in both}
    assert written == {"\u2581<s>old</s>\u2581new", "\u2581new"}
    assert all(document[0] == 1 and document[-1] == 2 and not {1, 2} & {*document[1:-1]} for document in both)


def test_transformers_loads_the_tokenizer(prepared: Callable[..., Path]) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    directory = prepared() / "tokenizer"
    text = "def größer(x):\n\treturn  x + 1 # 大 😀\n"
    for loaded in (
        AutoTokenizer.from_pretrained(directory, local_files_only=True),
        PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True),
    ):
        ids = loaded(text)["input_ids"]
        assert (loaded.bos_token, loaded.eos_token) == (BOS, EOS)
        assert (loaded.bos_token_id, loaded.eos_token_id) == (0, 1)
        assert ids[0] == 0
        assert loaded.decode(ids, skip_special_tokens=True) == text
        assert loaded.decode(ids[1:]) == text


def test_tokens_go_into_shards_of_bounded_size(
    prepared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = prepared()
    monkeypatch.setattr(token_shards, "SHARD_TOKENS", 1000)
    parts = prepared(root=tmp_path / "parts")
    index = verify(parts)
    assert len(index.splits["train"].shards) > 10
    assert set(index.splits["train"].shard_tokens[:-1]) == {1000}
    for split in ("train", "heldout"):
        assert np.array_equal(tokens_of(parts, split), tokens_of(whole, split))


def test_large_text_trains_the_tokenizer_on_a_sample(
    prepared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare_tokens, "TOKENIZER_BYTES", 40_000)
    monkeypatch.setattr(prepare_tokens, "_SLICE_CHARACTERS", 1000)
    lines: list[str] = []
    first = prepared(progress=lines.append)
    assert any("% of the training documents" in line for line in lines)
    assert contents(first) == contents(prepared(root=tmp_path / "again"))
    text = "x" * 100_000
    for share in (0.1, 0.37, 0.9):
        sampled = sum(map(len, prepare_tokens.slices_of(text, bytes(range(32)), share)))
        assert sampled == pytest.approx(share * len(text), abs=1000)


def test_a_tokenizer_is_trained_on_pieces_of_long_runs() -> None:
    """A run of 300,000 letters took half a minute, and became tokens of thousands of letters."""
    usual = ["", "a" * 1000, f" {'b' * 1000}\n{'c' * 1000} ", " " * 999 + "d"]
    assert list(cut_runs(iter(usual))) == usual
    text = f"the {'e' * 2500}  cat{' ' * 4000}{'f' * 1001}"
    pieces = list(cut_runs(iter([text])))
    assert "".join(pieces) == text
    assert len(pieces) == 2 + 3 + 1 + 1
    assert max(len(run) for piece in pieces for run in re.findall(r"\S+|\s+", piece)) <= 1001
    for trained in (train(iter([text * 4]), 300), wordpiece.train(lambda: iter([text * 4]), 300)):
        assert 500 < max(map(len, trained.tokenizer.get_vocab())) <= 1002


def test_wide_tokens(prepared: Callable[..., Path], tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "</s>": 1, **{f"word{number}": number for number in range(2, 70_000)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "rows.jsonl").write_text('{"text": "word3 word69999"}\n{"text": "word2 other"}\n')
    directory = prepared(tmp_path / "rows.jsonl", tokenizer=str(tmp_path / "tokenizer.json"), vocab_size=70_000)
    assert read_index(directory).dtype == "<u4"
    both = sorted(documents_of(directory, "train") + documents_of(directory, "heldout"))
    assert both == [[1, 2, 0, 1], [1, 3, 69_999, 1]]


def test_a_given_tokenizer_gives_the_same_tokens_and_files(prepared: Callable[..., Path]) -> None:
    trained = prepared()
    given = prepared(tokenizer=str(trained / "tokenizer"), vocab_size=600)
    assert contents(given / "tokenizer") == contents(trained / "tokenizer")
    assert np.array_equal(tokens_of(given, "train"), tokens_of(trained, "train"))
    with pytest.raises(DataError, match=r"has 512 tokens, more than the model's vocab_size of 500"):
        prepared(tokenizer=str(trained / "tokenizer"), vocab_size=500)


def test_bad_tokenizers(prepared: Callable[..., Path], tmp_path: Path) -> None:
    trained = prepared() / "tokenizer"
    with pytest.raises(DataError, match="does not exist; use 'train', a directory"):
        prepared(tokenizer=str(tmp_path / "nowhere"))
    broken = shutil.copytree(trained, tmp_path / "broken")
    (broken / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(DataError, match=r"cannot load tokenizer\.json"):
        prepared(tokenizer=str(broken))
    (broken / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(DataError, match="git lfs pull brings it"):
        prepared(tokenizer=str(broken))
    stray = shutil.copytree(trained, tmp_path / "stray")
    (stray / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    with pytest.raises(DataError, match=r"names eos_token '</s>', which is not in tokenizer"):
        prepared(tokenizer=str(stray))
    (stray / "tokenizer_config.json").write_text('{"eos_token": 2}')
    with pytest.raises(DataError, match="names eos_token 2, which is not in tokenizer"):
        prepared(tokenizer=str(stray))
    (stray / "tokenizer.json").rename(stray / "tokenizer.model")
    with pytest.raises(DataError, match=r"does not exist; tokenizer\.model has an older format: AutoTokenizer"):
        prepared(tokenizer=str(stray))
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "none.json"))
    with pytest.raises(DataError, match="has neither an eos_token"):
        prepared(tokenizer=str(tmp_path / "none.json"))
    Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>")).save(str(tmp_path / "all.json"))
    with pytest.raises(DataError, match="plain text becomes a special token"):
        prepared(tokenizer=str(tmp_path / "all.json"))
    assert [path.name for path in (tmp_path / "data").iterdir()] == [trained.parent.name]


def test_small_sources_still_hold_something_out(prepared: Callable[..., Path], tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    rows = [json.dumps({"text": f"row number {number}"}) for number in range(3)]
    source.write_text("\n".join(rows))
    for fraction, heldout in ((1e-9, 1), (1 - 1e-9, 2)):
        index = read_index(prepared(source, heldout_fraction=fraction))
        assert index.splits["heldout"].documents == heldout
        assert index.splits["train"].documents == 3 - heldout
    source.write_text(rows[0])
    with pytest.raises(DataError, match=r"one document; at least two are needed, because one is held out$"):
        prepared(source)
    source.write_text("\n".join(rows[:1] * 5))
    with pytest.raises(DataError, match="only copies of one document"):
        prepared(source)
    (tmp_path / "rows.csv").write_text("text,label")
    with pytest.raises(DataError, match=r"\(\.csv is not read as rows: convert it to \.jsonl"):
        prepared(tmp_path / "rows.csv")


def test_separators_of_documents_are_named(prepared: Callable[..., Path], tmp_path: Path) -> None:
    """As in TinyStories: each is read as its letters, and no document ends there."""
    stories = "\n\n".join(f"Once upon a time {number}.\n<|endoftext|>" * 40 for number in range(9))
    (tmp_path / "stories.txt").write_text(stories)
    said: list[str] = []
    prepared(tmp_path / "stories.txt", progress=said.append)
    assert any("of them hold <|endoftext|>, which is text here and ends no document" in line for line in said)
    (tmp_path / "stories.txt").write_text(stories.replace("<|endoftext|>", ""))
    said.clear()
    prepared(tmp_path / "stories.txt", progress=said.append)
    assert not any("endoftext" in line for line in said)


def test_tables_that_are_read_as_text_are_named(prepared: Callable[..., Path], tmp_path: Path) -> None:
    """A rule of rows would be expected of a .csv; of a .json in a directory of code it would not."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "rows.csv").write_text("text\n" + "a row\n" * 2000)

    def told() -> list[str]:
        said: list[str] = []
        prepared(tmp_path / "text", progress=said.append)
        return [line for line in said if "plain text" in line]

    (tmp_path / "text" / "more.csv").write_text("text\nother\n")
    assert told() == [".csv is read as plain text, not as rows: convert it to .jsonl or .parquet for its rows"]
    (tmp_path / "text" / "code.py").write_text("x = 1\n")
    assert told() == []


def test_the_split_follows_the_documents_hash(prepared: Callable[..., Path], corpus: Path, tmp_path: Path) -> None:
    fewer = shutil.copytree(corpus / "email", tmp_path / "fewer" / "email").parent
    tokenizer = str(prepared() / "tokenizer")
    all_held, some_held = (
        {tuple(document) for document in documents_of(prepared(source, tokenizer=tokenizer), "heldout")}
        for source in (corpus, fewer)
    )
    assert some_held
    assert some_held <= all_held


def test_bad_settings_and_sources(prepared: Callable[..., Path], corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="vocab_size 100 is too small"):
        prepared(vocab_size=100)
    with pytest.raises(DataError, match="held-out fraction 0 is not between 0 and 1"):
        prepared(heldout_fraction=0)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"no documents \(1 not UTF-8 text\) in images: 1 file"):
        prepared(tmp_path / "images")
    with pytest.raises(DataError, match="contains the datasets' directory"):
        prepared(corpus, root=corpus / "json" / "data")
    assert not (corpus / "json" / "data").exists()


def test_text_that_changes_while_it_is_read_is_refused(prepared: Callable[..., Path], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "abcd":
        (source / name).write_text(f"Document {name} says hello. " * 20)

    def change(line: str) -> None:
        if line.startswith("training a tokenizer"):
            (source / "e").write_text("new")

    with pytest.raises(DataError, match="changed while it was read"):
        prepared(source, progress=change)
    assert list((tmp_path / "data").iterdir()) == []


def test_progress_is_reported_during_long_work(prepared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "line_seconds", lambda: 1e-5)
    monkeypatch.setattr(reporter, "POLL", 1e-6)
    lines: list[str] = []
    prepared(progress=lines.append)
    stages = [line.split()[0] for line in lines]
    assert stages[0] == "reading"
    assert stages.count("read") > 3
    assert stages.count("training") > 3
    assert stages.count("tokenized") >= 1
    assert re.search(r"documents, 0\.[12] MiB", lines[-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["train-00000.bin", "heldout-starts.npy", "tokenizer/tokenizer.json"])
def test_one_flipped_bit_is_found(prepared: Callable[..., Path], name: str) -> None:
    directory = prepared()
    verify(directory)
    flip(directory / name)
    with pytest.raises(DataError, match=rf"{name} is damaged: sha256 does not match; remove {directory}"):
        verify(directory)
    flip(directory / name)
    verify(directory)


def test_missing_short_and_edited_files_are_found(prepared: Callable[..., Path]) -> None:
    directory = prepared()
    index, shard = directory / "index.json", directory / "train-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    for check in (verify, lambda _: prepared()):
        with pytest.raises(DataError, match=rf"train-00000\.bin has {len(whole) - 2} bytes, not {len(whole)}"):
            check(directory)
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00000\.bin: No such file"):
        verify(directory)
    shard.write_bytes(whole)
    text = index.read_text()
    tokens = read_index(directory).splits["train"].tokens
    for edited, message in (
        (text.replace(str(tokens), str(tokens - 1)), "digest does not match its content"),
        (text.replace('"format": 1', '"format": 99'), "has format 99, this code reads 1"),
        (text[: len(text) // 2], "not JSON"),
        ("[]", "is damaged"),
        (text.replace('"splits"', '"spilts"'), "is damaged"),
    ):
        index.write_text(edited)
        with pytest.raises(DataError, match=message):
            verify(directory)
    index.unlink()
    with pytest.raises(DataError, match=r"not a prepared dataset: it has no index\.json"):
        prepared()


def test_preparing_needs_no_torch() -> None:
    code = (
        "import sys, training.data.prepare_tokens, training.data.token_dataset, training.data.sampler;"
        "print(sorted({'torch', 'transformers', 'pyarrow', 'datasets', 'httpx2'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert result.stdout == "[]\n"
