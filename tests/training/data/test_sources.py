"""Documents from every kind of source, in a fixed order, and one error for each bad source."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.errors import DataError
from training.data.sources import Counts, open_source


def texts(source: object, field: str = "text") -> list[str]:
    return [document.text for document in open_source(str(source), field).documents()]


def error_of(source: object, field: str = "text") -> str:
    with pytest.raises(DataError) as caught:
        texts(source, field)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_stdlib_is_the_interpreters_library_without_duplicates(stdlib: Path) -> None:
    source = open_source("python-stdlib")
    counts = Counts()
    documents = list(source.documents(counts))
    names = [file.name for file in source.files]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert {"abc.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if "site-packages" in name or "__pycache__" in name]
    assert not [name for name in names if {"test", "tests"} & set(name.split("/"))]  # some systems do not have them
    assert (stdlib / "abc.py").read_text(encoding="utf-8") in {document.text for document in documents}
    assert len({document.data for document in documents}) == len(documents) == counts.documents
    assert counts.documents + counts.duplicates + counts.empty + counts.not_text == len(names)
    assert counts.bytes == sum(len(document.data) for document in documents) >= 10_000_000


def test_directory_is_read_recursively_in_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "b" / ".git").mkdir(parents=True)
    for name in ("b/one.txt", "a.txt", ".hidden", "b/.git/config", "b/two.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "zeros.bin").write_bytes(b"text\0text")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    counts = Counts()
    found = [document.text for document in open_source(str(tmp_path)).documents(counts)]
    assert found == ["a.txt", "b/one.txt", "b/two.md"]
    assert (counts.documents, counts.empty, counts.not_text) == (3, 1, 2)


def test_a_directory_that_a_link_leads_to_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "deep" / "c.txt").write_text("c")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "other")
    (tmp_path / "set" / "own").mkdir(parents=True)
    (tmp_path / "set" / "own" / "a.txt").write_text("a")
    for name, target in (("again", "own"), ("up", ".."), ("linked", "../other"), ("same", "../other/deep")):
        (tmp_path / "set" / name).symlink_to(target)
    names = [file.name for file in open_source(str(tmp_path / "set")).files]
    assert names == ["linked/deep/c.txt", "own/a.txt"]


def test_a_directory_keeps_identical_documents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("the same")
    assert texts(tmp_path) == ["the same", "the same"]


def test_glob_takes_what_matches_whatever_its_kind(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "rows.jsonl").write_text('{"text": "row"}\n')
    (tmp_path / "plain.txt").write_text("plain")
    (tmp_path / "other.md").write_text("other")
    assert texts(tmp_path / "**" / "*.[jt]*") == ["row", "plain"]
    assert "matches no file" in error_of(tmp_path / "*.rst")


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "notes[1].txt").write_text("here")
    assert texts(tmp_path / "notes[1].txt") == ["here"]


def test_one_text_file_is_cut_at_blank_lines_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {number}: " + "größer, 大, 😀. " * 40 + "\n\n" for number in range(200)]
    path = tmp_path / "book.txt"
    path.write_text("".join(paragraphs), encoding="utf-8")
    found = texts(path)
    assert "".join(found) == "".join(paragraphs)
    assert len(found) > 50
    assert all(text.endswith("\n\n") for text in found)


def test_one_endless_line_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    text = "x" + "😀é" * 60_000
    path.write_text(text, encoding="utf-8")
    found = texts(path)
    assert "".join(found) == text
    assert len(found) > 1


def test_byte_order_marks_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8-sig")
    (tmp_path / "rows.jsonl").write_text('{"text": "row"}', encoding="utf-8-sig")
    assert texts(tmp_path) == ["text", "row"]
    assert texts(tmp_path / "a.txt") == ["text"]


ROWS = ["first", "second\nline", "drittes ☃"]


@pytest.mark.parametrize(
    "name",
    ["rows.jsonl", "rows.ndjson", "rows.jsonl.gz", "rows.ndjson.gz", "rows.json.gz", "rows.parquet", "view.parquet"],
)
def test_rows_are_documents(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        body = pa.array(ROWS, pa.string_view()) if name == "view.parquet" else pa.array(ROWS).dictionary_encode()
        table = pa.table({"id": [1, 2, 3], "body": body})
        pq.write_table(table, path, row_group_size=2)
    else:
        lines = "\n\n".join(json.dumps({"id": 1, "body": row}) for row in ROWS).encode()
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    assert texts(path, "body") == ROWS
    assert "no field 'bdy' (fields: id, body); did you mean 'body'?" in error_of(path, "bdy")
    assert "not a string" in error_of(path, "id") or "not strings" in error_of(path, "id")


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "good"}\nbroken\n')
    documents = open_source(str(path)).documents()
    assert next(documents).text == "good"
    with pytest.raises(DataError, match="line 2"):
        next(documents)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{'text': 1}", "not JSON"),
        (b'{"text": "cut', "not JSON"),
        (b'{"text": 5}', "field 'text' is a number, not a string"),
        (b'{"txt": "x"}', "no field 'text' (fields: txt); did you mean 'txt'?"),
        (b"{}", "no field 'text' (fields: none)"),
        (b'["text"]', "must be an object with the field 'text', not a list"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    message = error_of(path)
    assert message.startswith(f"{path}, line 3: ")
    assert reason in message


def test_bad_parquet_rows_and_files(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array([b"good"], pa.binary())}), path)
    assert error_of(path) == f"{path}: field 'text' holds binary, not strings"
    pq.write_table(pa.table({"text": [str(number) * 50 for number in range(5000)]}), path, compression="zstd")
    whole = path.read_bytes()
    path.write_bytes(whole[:4000] + bytes(2000) + whole[6000:])
    assert f"{path}, after row" in error_of(path)
    path.write_bytes(whole[:-100])
    assert f"{path}, after row 0" in error_of(path)


def test_a_null_is_an_empty_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["good", None, "", "more"]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": null}\n{"text": "last"}\n')
    counts = Counts()
    assert [document.text for document in open_source(str(tmp_path)).documents(counts)] == ["good", "more", "last"]
    assert (counts.documents, counts.empty) == (3, 3)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_a_clone_without_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert error_of(tmp_path / name).endswith("in place of the file; git lfs pull brings it)")


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(b"".join(json.dumps({"text": str(n)}).encode() + b"\n" for n in range(20_000)))
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged gzip data" in error_of(path)
    path.write_bytes(b"no gzip at all")
    assert "damaged gzip data" in error_of(path)


@pytest.mark.parametrize(
    "name", ["a.jsonl.zst", "a.CSV.gz", "a.txt.bz2", "a.json.xz", "a.zip", "a.parquet.gz", "a.tar"]
)
def test_a_compression_that_is_not_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """As one file, as a URL, and as all files of a directory or a glob; beside others it is not text, as before."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"text"))
    for source in (path, tmp_path, tmp_path / "a*"):
        assert error_of(source) == f"data source {path}: this compression is not read; unpack it, or use .jsonl.gz"
    with pytest.raises(DataError, match="this compression is not read"):
        open_source(f"https://host/{name}")
    (tmp_path / "b.txt").write_text("text")
    counts = Counts()
    assert [document.text for document in open_source(str(tmp_path)).documents(counts)] == ["text"]
    assert counts.not_text == 1


def test_files_about_data_are_not_taken_for_it(tmp_path: Path) -> None:
    """A data set that the library `datasets` has saved, and a clone of one: the text about it is not its text."""
    for name in ("README.md", "dataset_dict.json", "train/dataset_info.json", "train/state.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("about the data")
    (tmp_path / "train" / "data-00000-of-00001.arrow").write_bytes(b"\xff\xff\xff\xff")
    message = error_of(tmp_path)
    assert message.startswith(f"data source {tmp_path}/train/data-00000-of-00001.arrow: Arrow files are not read; ")
    (tmp_path / "train" / "data-00000-of-00001.arrow").rename(tmp_path / "train" / "data.jsonl.zst")
    assert "this compression is not read" in error_of(tmp_path)
    (tmp_path / "train" / "data.jsonl.zst").unlink()
    assert texts(tmp_path) == ["about the data"] * 4


def test_what_describes_rows_is_not_one_of_their_documents(tmp_path: Path) -> None:
    """As in a clone of a data set of the hub. Beside texts, such as a program's, a README.md is one of them."""
    for name in ("README.md", "LICENSE", "dataset_infos.json", "sub/readme.txt"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text("about the data")
    (tmp_path / "set" / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    for source in (tmp_path / "set", tmp_path / "set" / "**"):
        assert texts(source) == ["a", "b"]
    found = open_source(f"{tmp_path / 'set'}\n{tmp_path / 'set' / 'README.md'}")
    assert [document.text for document in found.documents()] == ["a", "b", "about the data"], "named on its own"
    told = "; left out, because rows are beside them: LICENSE, README.md, dataset_infos.json and 1 more"
    assert found.describe().endswith(told)
    (tmp_path / "set" / "rows.jsonl").rename(tmp_path / "set" / "code.py")
    assert len(texts(tmp_path / "set")) == 5


def test_shards_of_streaming_are_refused_with_their_index(tmp_path: Path) -> None:
    """The index alone would be the text."""
    for name in ("train/index.json", "val/index.json", "train/shard.00000.mds", "val/shard.00000.mds.zstd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"shards": []}')
    assert "train/shard.00000.mds: shards of MosaicML's streaming are not read" in error_of(tmp_path)


def test_a_cache_of_the_hub_is_read_at_a_commit(tmp_path: Path) -> None:
    """Its blobs have no names that say what they are, and are there for each commit."""
    for name in ("blobs/0a", "refs/main", "snapshots/0123/rows.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}\n')
    assert error_of(tmp_path).endswith(f"is a cache of the hub; name a commit in it: {tmp_path}/snapshots/0123")
    assert texts(tmp_path / "snapshots" / "0123") == ["a"]


def test_the_split_to_train_on_is_read_without_the_others(tmp_path: Path) -> None:
    """As the hub and `datasets` name the files of splits. Texts, such as a program and its tests, have none."""
    names = ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl", "validation.jsonl", "more.jsonl")
    for name in (*names, "train/test-questions.jsonl"):
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).write_text(f'{{"text": "{name}"}}\n')
    found = open_source(str(tmp_path / "rows"))
    assert texts(tmp_path / "rows") == [names[0], "more.jsonl", "train/test-questions.jsonl"]
    assert found.describe().endswith(f"; left out, because there is a split train: {names[1]}, {names[2]}")
    assert len(open_source(f"{tmp_path / 'rows'}\n{tmp_path / 'rows'}").tests) == 4
    (tmp_path / "rows" / names[0]).unlink()
    (tmp_path / "rows" / "train/test-questions.jsonl").unlink()
    assert texts(tmp_path / "rows") == [names[1], "more.jsonl", "validation.jsonl"], "nothing is named train"
    for name in ("train.py", "test_train.py"):
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / name).write_text(name)
    assert texts(tmp_path / "code") == ["test_train.py", "train.py"]


def test_a_text_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo\n" * 2000 + "größer\n".encode("latin-1"))
    assert error_of(path).startswith(f"{path}, line 4001: not UTF-8 text")


@pytest.mark.parametrize("order", ["le", "be"])
def test_the_texts_of_windows_and_binary_files_are_no_text(tmp_path: Path, order: str) -> None:
    """In UTF-16 each letter has a zero byte beside it, which UTF-8 allows."""
    path = tmp_path / "a.txt"
    path.write_bytes("one\ntwo\n".encode(f"utf-16-{order}"))
    assert error_of(path).startswith(f"{path}: not text, because it has zero bytes")
    text = '{"text": "one"}\n'
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{text}".encode(f"utf-16-{order}"))
    assert error_of(tmp_path / "a.jsonl").endswith("; it begins as UTF-16 does: convert it to UTF-8")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.add(path, "a.txt")
    (tmp_path / "b.data").write_bytes((tmp_path / "b.tar").read_bytes())
    assert "not text, because it has zero bytes" in error_of(tmp_path / "b.data")


def test_an_object_over_several_lines_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps({"text": "a"}).encode())
    assert texts(path) == ["a"], "a mark before an empty line is not a row"
    path.write_text(json.dumps({"text": "a"}, indent=1))
    assert error_of(path).endswith("line 1: not JSON (it does not end in this line; write each object into one line)")


@pytest.mark.parametrize("name", ["data.json", "data.txt", "part-00000"])
def test_rows_of_json_are_not_one_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('\n{"text": "a", "id": 1}\n\n{"text": "b"}\n')
    assert error_of(path).startswith(f"{path}: rows of JSON with the field 'text'; name it .jsonl")
    path.write_text('{"text": "a"}\n{"id": 2}\n')
    assert len(texts(path)) == 1, "the second line is not a row"
    path.write_text('{"text": 1} is how a row begins\n')
    assert len(texts(path)) == 1


def test_missing_and_empty_sources(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").touch()
    (tmp_path / "nothing").mkdir()
    assert error_of(tmp_path / "corpsu.txt").endswith("does not exist; did you mean 'corpus.txt'?")
    assert error_of("python-stdllib") == ("data source python-stdllib does not exist; did you mean 'python-stdlib'?")
    assert "does not exist" in error_of(tmp_path / "corpus.txt" / "below")
    assert error_of("/otp") == "data source /otp does not exist", "/opt is not what was meant"
    assert error_of(tmp_path / "corpus.txt").endswith("is empty")
    assert "contains no" in error_of(tmp_path / "nothing")
    assert "is not a path" in error_of("")
    assert "is not a path" in error_of("a\0b")
    assert error_of("s3://corpus/text").endswith("; yard stage s3://corpus/text brings it to the volume")
    assert error_of("gs://corpus/text").endswith("is not read directly; copy it to the volume")
    assert error_of("org/set@main").endswith("does not exist; of the hub it is hf://datasets/org/set@<commit>")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a directory" in error_of(tmp_path / "pipe")


@pytest.fixture
def as_ordinary_user() -> Iterator[Path]:
    """A directory that every user may enter; root, who may read anything, becomes the user nobody."""
    user, nobody = os.geteuid(), 65534
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "secret.txt").write_text("x")
        (Path(name) / "secret.txt").chmod(0)
        if user == 0:
            os.seteuid(nobody)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


def test_unreadable_files_are_named(as_ordinary_user: Path) -> None:
    secret = as_ordinary_user / "secret.txt"
    assert error_of(secret) == f"cannot read {secret}: Permission denied"
    assert error_of(as_ordinary_user) == f"cannot read {secret}: Permission denied"


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    source = open_source(str(tmp_path))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: No such file"):
        list(source.documents())
