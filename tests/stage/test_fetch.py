"""Sources reach a directory whole, with digests, and a killed process continues without fetching again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import signal
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parts import moto
from tests.parts.webserver import COMMIT, TOKEN, WebServer
from tests.stage.conftest import fetched, started
from training.data.errors import DataError
from training.stage import arrive, s3
from training.stage.arrive import MANIFEST
from training.stage.origins import items_of

LARGE = random.Random(7).randbytes(6_000_000)


def tree(root: Path) -> dict[str, bytes]:
    """Return the files below a directory by name, without the manifest."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def test_a_directory_with_archives_arrives_with_digests(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "claim/text/corpus"
    (source / "parts").mkdir(parents=True)
    (source / "one.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n'))
    (source / "one.ndjson.gz").write_bytes(gzip.compress(b'{"text": "b"}\n'))
    (source / "parts/two.txt.gz").write_bytes(gzip.compress(b"two"))
    (source / ".hidden").write_text("no")
    (source / "link").symlink_to("/etc/passwd")
    _tar(source / "parts/three.tgz", {"deep/three.txt": b"three", "./four.txt": b"four"})
    code, answer, said = fetched(source, target)
    assert code == 0, said
    assert tree(target) == {
        "one.jsonl.gz": (source / "one.jsonl.gz").read_bytes(),
        "one.ndjson.gz": (source / "one.ndjson.gz").read_bytes(),
        "parts/two.txt": b"two",
        "parts/deep/three.txt": b"three",
        "parts/four.txt": b"four",
    }
    listed = json.loads((target / MANIFEST).read_text())["files"]
    assert {name: hashlib.sha256(data).hexdigest() for name, data in tree(target).items()} == {
        name: entry["sha256"] for name, entry in listed.items()
    }
    assert answer["files"] == 5
    assert "2 hidden files, links and special files are left out" in said
    assert os.listdir(target.parent) == ["corpus"], "nothing is left beside it"


def test_the_same_again_fetches_nothing_and_other_content_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "claim/text"
    source.mkdir()
    (source / "a.txt").write_text("a")
    target.mkdir(parents=True)  # as kubelet makes it for a mount
    assert fetched(source, target)[1]["fetched"] == 1
    assert fetched(source, target)[1]["fetched"] == 0
    (source / "b.txt").write_text("b")
    code, _, said = fetched(source, target)
    assert (code, tree(target)) == (2, {"a.txt": b"a"})
    assert "exists with other content" in said
    assert fetched(source, target, "--replace")[0] == 0
    assert tree(target) == {"a.txt": b"a", "b.txt": b"b"}
    (target / "b.txt").unlink()
    assert fetched(source, target)[0] == 2, "a damaged copy is not called complete"


def test_a_killed_process_continues_in_the_middle_of_a_file(site: WebServer, tmp_path: Path) -> None:
    target = tmp_path / "claim/text/big"
    for name in ("a.bin", "b.bin"):
        (site.root / name).write_bytes(LARGE)
    site.pause = 0.05
    url = f"{site.url}/{{a,b}}.bin"
    first = started("fetch", f"--to={target}", "--", url)
    _until(lambda: _synced(target) > 1_000_000)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not target.exists(), "nothing appears before everything is there"
    kept = _synced(target)
    site.pause = 0.0
    site.asked.clear()
    code, answer, said = fetched(url, target)
    assert code == 0, said
    assert tree(target) == {"a.bin": LARGE, "b.bin": LARGE}
    assert answer["fetched"] == 2 * len(LARGE) - kept < 2 * len(LARGE), "the bytes before are not asked for"
    assert any(one.first > 0 for one in site.asked), site.asked


def test_a_complete_archive_is_not_fetched_again_when_unpacking_was_killed(site: WebServer, tmp_path: Path) -> None:
    _tar(site.root / "many.tar", {f"{n:05d}.txt": b"text" * 50 for n in range(6000)})
    url, targets = f"{site.url}/many.tar", (tmp_path / f"claim-{number}/text/many" for number in range(9))
    # On a busy machine it may end before this process sees that it unpacks.
    target = next(one for one in targets if _stopped_while_unpacking(url, one))
    assert not target.exists(), "the control: it was stopped before its end"
    code, answer, said = fetched(url, target)
    assert (code, answer["files"], answer["fetched"]) == (0, 6000, 0), said


def _stopped_while_unpacking(url: str, target: Path) -> bool:
    process = started("fetch", f"--to={target}", "--", url)
    _until(lambda: len(list(target.parent.glob(f".{target.name}.*/files/*"))) > 20 or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    return process.wait(120) != 0


def _synced(target: Path) -> int:
    """Return how many bytes a process has marked as written."""
    marks = target.parent.glob(f".{target.name}.*/parts/*.size")
    return sum(int(mark.read_text() or 0) for mark in marks)


def _until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_model_of_the_hub_comes_at_a_commit_with_its_published_digests(site: WebServer, tmp_path: Path) -> None:
    model = site.root / "hub/team/gated-8b"
    (model / "original").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin", "original/consolidated.00.pth"):
        (model / name).write_text(name)
    (model / "model.safetensors").write_bytes(LARGE[:100_000])
    target = tmp_path / "claim/models/gated-8b"
    hub = {"HF_ENDPOINT": site.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": ""}
    code, _, said = fetched("hf://team/gated-8b", target, **hub)
    assert (code, target.exists()) == (2, False)
    assert "needs a token" in said
    code, answer, said = fetched("hf://team/gated-8b", target, **hub | {"HF_TOKEN": TOKEN})
    assert code == 0, said
    assert answer["source"] == f"hf://team/gated-8b@{COMMIT}"
    assert sorted(tree(target)) == ["config.json", "model.safetensors", "tokenizer.json"], "no pickles"
    assert TOKEN not in said
    only = tmp_path / "claim/models/tokenizer"
    assert fetched("hf://team/gated-8b", only, "--include=tok*", **hub | {"HF_TOKEN": TOKEN})[0] == 0
    assert sorted(tree(only)) == ["tokenizer.json"]
    for name, said_so in (
        ("hf://team/none", "the hub has no model team/none"),
        ("hf://team/gated-8b@v9", "has no revision v9"),
        ("hf://datasets/team/gated-8b/none-*.txt", "there is no file"),
    ):
        code, _, said = fetched(name, tmp_path / "x", **hub)
        assert (code, said_so in said) == (2, True), said


def test_a_data_set_of_the_hub_comes_without_what_is_about_it(site: WebServer, tmp_path: Path) -> None:
    data = site.root / "hub/team/texts"
    (data / "en").mkdir(parents=True)
    for name in ("README.md", ".gitattributes", "load.py", "en/part-0.jsonl", "en/part-1.jsonl"):
        (data / name).write_text(name)
    target = tmp_path / "claim/text/texts"
    hub = {"HF_ENDPOINT": site.url, "HF_HUB_OFFLINE": "0"}
    assert fetched("hf://datasets/team/texts", target, **hub)[0] == 0
    assert sorted(tree(target)) == ["en/part-0.jsonl", "en/part-1.jsonl"]
    one = tmp_path / "claim/text/one"
    assert fetched("hf://datasets/team/texts/en/part-{1..1}.jsonl", one, **hub)[0] == 0
    assert sorted(tree(one)) == ["en/part-1.jsonl"]


def test_a_prefix_of_s3_comes_signed_and_anonymous(tmp_path: Path) -> None:
    with moto.server() as url:
        import boto3

        keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="corpus")
        for key in ("texts/a.txt", "texts/deep/b.txt", "texts/", "textsandmore/c.txt"):
            client.put_object(Bucket="corpus", Key=key, Body=key.encode(), ACL="public-read")
        there = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        signed = {name.upper(): value for name, value in keys.items()}
        nobody = {"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        code, answer, said = fetched("s3://corpus/texts", tmp_path / "signed", **there, **signed)
        assert (code, answer["files"]) == (0, 2), said
        assert tree(tmp_path / "signed") == {"a.txt": b"texts/a.txt", "deep/b.txt": b"texts/deep/b.txt"}
        code, _, said = fetched("s3://corpus/texts", tmp_path / "nobody", **there, **nobody)
        assert (code, "no credentials" in said) == (2, True), said
        code, _, said = fetched("s3://corpus/texts/a.txt", tmp_path / "public", "--no-sign-request", **there, **nobody)
        assert (code, tree(tmp_path / "public")) == (0, {"a.txt": b"texts/a.txt"}), said
        code, _, said = fetched("s3://other/texts", tmp_path / "other", **there, **signed)
        assert (code, "there is no such bucket" in said) == (2, True), said


@pytest.mark.parametrize("source", ["s3://corpus/texts", "s3://corpus/texts/"])
def test_the_empty_object_that_a_console_makes_for_a_folder_is_not_the_source(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [{"Key": key, "Size": len(key), "ETag": "x"} for key in ("texts/", "texts/a.txt", "texts/b/c.txt")]
    monkeypatch.setattr(s3, "s3_client", lambda: None)
    monkeypatch.setattr(s3, "_listed", lambda *_: entries)
    assert sorted(item.name for item in s3.items(source, (), False, print)) == ["a.txt", "b/c.txt"]


def _tar(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for entry in more:
            archive.addfile(entry)


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def _zip(path: Path, files: dict[str, bytes], mode: int = 0) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)


REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a path upwards": ("x.tar", lambda p: _tar(p, {"../../out.txt": b"x"}), "not a plain path"),
    "an absolute path": ("x.tar", lambda p: _tar(p, {"/tmp/out.txt": b"x"}), "out.txt"),
    "a symbolic link": ("x.tar", lambda p: _tar(p, {}, _member("l", tarfile.SYMTYPE, "/etc")), "a link"),
    "a hard link": ("x.tar", lambda p: _tar(p, {"a": b""}, _member("l", tarfile.LNKTYPE, "a")), "a link"),
    "a device": ("x.tar", lambda p: _tar(p, {}, _member("d", tarfile.CHRTYPE)), "a device"),
    "a pipe": ("x.tar", lambda p: _tar(p, {}, _member("p", tarfile.FIFOTYPE)), "a pipe"),
    "a zip path upwards": ("x.zip", lambda p: _zip(p, {"../out.txt": b"x"}), "not a plain path"),
    "a zip link": ("x.zip", lambda p: _zip(p, {"l": b"/etc"}, 0o120777), "a link"),
    "a zip bomb": ("x.zip", lambda p: _zip(p, {"b": bytes(40_000_000)}), "unpacks to more than"),
    "a gzip bomb": ("x.txt.gz", lambda p: _gzip(p, bytes(40_000_000)), "unpacks to more than"),
    "a cut gzip file": ("x.txt.gz", lambda p: _gzip(p, LARGE[:9000], 5000), "damaged archive"),
    "not a tar file": ("x.tar", lambda p: _gzip(p, b"no"), "damaged archive"),
    "not a zip file": ("x.zip", lambda p: _gzip(p, b"no"), "damaged archive"),
    "a file and a directory": ("x.tar", lambda p: _tar(p, {"a": b"", "a/b": b""}), "both as a file and as a directory"),
    "a directory and a file": ("x.zip", lambda p: _zip(p, {"a/b": b"", "a": b""}), "x.zip: a cannot be written: the s"),
    "a name with an escape": ("x.tar", lambda p: _tar(p, {"a\x1b[2J": b""}), "not a plain path"),
}


def _gzip(path: Path, data: bytes, first: int | None = None) -> None:
    path.write_bytes(gzip.compress(data)[:first])


@pytest.mark.parametrize("what", REFUSED)
def test_hostile_archives_are_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, make, said = REFUSED[what]
    (tmp_path / "source").mkdir()
    make(tmp_path / "source" / name)
    code, message = _in_process(tmp_path, monkeypatch)
    assert (code, said in message) == ("refused", True), message
    assert not (tmp_path / "claim/x").exists()
    assert not list(tmp_path.rglob("out.txt"))


def _in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Bring tmp_path/source to tmp_path/claim/x with a small limit for bombs."""
    from training.stage import unpack

    monkeypatch.setattr(unpack, "MOST_UNPACKED", 1 << 20)
    exact, items = items_of(str(tmp_path / "source"), (), False, print)
    try:
        arrive.arrive(arrive.Order(exact), items, tmp_path / "claim/x", print, threading.Event())
    except DataError as error:
        return "refused", str(error)
    return "there", ""


def test_names_that_only_a_bucket_can_hold_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/one").write_text("")
    (one,) = items_of(str(tmp_path / "source"), (), False, print)[1]
    items = [replace(one, name=name) for name in ("a", "a/b")]
    with pytest.raises(DataError, match="both as a file and as a directory; leave one out with --include"):
        arrive.arrive(arrive.Order("s3://x/y", at_once=1), items, tmp_path / "claim/x", print, threading.Event())


@pytest.mark.parametrize("frames", [1, 3])
def test_zstandard_files_and_archives_are_unpacked(frames: int, tmp_path: Path) -> None:
    import pyarrow as pa

    def zstd(data: bytes) -> bytes:
        size = -(-len(data) // frames)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        return b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts)

    source = tmp_path / "source"
    source.mkdir()
    (source / "rows.jsonl.zst").write_bytes(zstd(b'{"text": "a"}\n' * 1000))
    _tar(tmp_path / "plain.tar", {"in/side.txt": LARGE[:70_000]})
    (source / "all.tar.zst").write_bytes(zstd((tmp_path / "plain.tar").read_bytes()))
    assert fetched(source, tmp_path / "claim/x")[0] == 0
    assert tree(tmp_path / "claim/x") == {
        "rows.jsonl": b'{"text": "a"}\n' * 1000,
        "in/side.txt": LARGE[:70_000],
    }


@pytest.mark.parametrize(("free", "fits"), [(70_000, False), (100_000, False), (250_000, True)])
def test_what_does_not_fit_is_refused_before_it_is_fetched(
    free: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    _tar(tmp_path / "source/a.tar", {"a": LARGE[:60_000]})
    monkeypatch.setattr(arrive, "_free", lambda _: free)
    said, message = _in_process(tmp_path, monkeypatch)
    assert (said == "there") is fits, message
    assert fits or "MiB free, and" in message
