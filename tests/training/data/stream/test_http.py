"""Files over HTTP: complete and read once whatever the server does, and one error if it fails too often."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data.stream.conftest import ALL_TEXTS, FAULTS, text_of
from training.data import retries
from training.data.errors import DataError
from training.data.http import RemoteFile
from training.data.readers import rows_of
from training.data.remote_files import RemotePlace, urls_of
from training.data.retries import Stopped
from training.data.sources import open_source

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that are never silent, where each request counts."""
    monkeypatch.setattr(retries, "POLICY", replace(retries.POLICY, silence=30.0))


def read(url: str) -> bytes:
    with RemoteFile(url) as file:
        return file.readall()


def test_every_byte_once_whatever_the_server_does(serve: Callable[..., Any]) -> None:
    server = serve(share=0.75, seed=3)
    for path, data in server.files.items():
        assert read(server.url + path) == data
    assert set(server.faults()) == set(FAULTS), "the schedule has every kind of failure"
    assert any(asked for _, asked, _ in server.requests), "some request began in the middle of a file"


def test_without_retries_it_fails(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same schedule, one attempt."""
    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(attempts=1, silence=0.3))
    server = serve(share=0.75, seed=3)
    failed = 0
    for path, data in server.files.items():
        try:
            assert read(server.url + path) == data
        except DataError:
            failed += 1
    assert failed > len(server.files) // 2


@pytest.mark.usefixtures("patient")
def test_a_certificate_that_is_not_trusted_ends_the_attempts(tmp_path: Path) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*words, "-keyout", "key", "-out", "own"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own", tmp_path / "key")
    asked = 0

    def answer(listener: socket.socket) -> None:
        nonlocal asked
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            asked += 1
            with connection, contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(DataError, match="the server's certificate is not trusted"):
            read(f"https://127.0.0.1:{listener.getsockname()[1]}/a")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    assert asked == 1


def test_a_server_without_ranges_sends_from_the_start(serve: Callable[..., Any]) -> None:
    server = serve(share=0.5, seed=1, ranges=False)
    for path, data in server.files.items():
        assert read(server.url + path) == data
    assert {"cut", "silent"} & set(server.faults())


def test_retry_after_is_respected(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    path = "/shard-00.jsonl.gz"
    answers = iter([{"Retry-After": "1"}, {"Retry-After": "5000"}])
    original = httpx2.Client.send

    def busy(self: Any, request: Any, **named: Any) -> Any:
        server.asked_at.setdefault("client", []).append(__import__("time").monotonic())
        headers = next(answers, None)
        return original(self, request, **named) if headers is None else httpx2.Response(429, headers=headers)

    monkeypatch.setattr(httpx2.Client, "send", busy)
    with pytest.raises(DataError, match=r"shard-00.* 429 and asks to wait 5,000 s, more than 2 s"):
        read(server.url + path)
    first, second = server.asked_at["client"]
    assert second - first >= 1.0, "not before the server's own Retry-After"


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)]
)
def test_retry_after(value: str, seconds: float) -> None:
    assert retries._retry_after({"Retry-After": value}) == seconds


def test_pauses_double_up_to_a_bound() -> None:
    policy = retries.RetryPolicy(first=1.0, most=8.0)
    pauses = [[policy.pause(failures) for _ in range(50)] for failures in range(1, 8)]
    for most, drawn in zip((1, 2, 4, 8, 8, 8, 8), pauses, strict=True):
        assert most / 2 <= min(drawn) < max(drawn) <= most


@pytest.mark.usefixtures("patient")
def test_a_dead_source_is_one_error_with_its_url(serve: Callable[..., Any]) -> None:
    server = serve(dead=frozenset({"/shard-04.jsonl.gz"}))
    url = f"{server.url}/shard-04.jsonl.gz"
    lines: list[str] = []
    with pytest.raises(DataError) as caught:
        list(rows_of(RemotePlace(url, lines.append), "text"))
    assert str(caught.value) == f"{url}: the server answered 503; gave up after 20 of 20 attempts"
    assert len(server.requests) == 20
    assert len(lines) == 19
    assert lines[0].startswith(f"{url}: the server answered 503; 1 of 20 attempts failed, the next in 0.0")


def test_a_refused_connection_is_retried(serve: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9/x\.jsonl: .*; gave up after 20 of 20"):
        read("http://127.0.0.1:9/x.jsonl")


@pytest.mark.usefixtures("patient")
def test_a_permanent_failure_is_not_retried(serve: Callable[..., Any]) -> None:
    server = serve()
    with pytest.raises(DataError, match=r"/nothing\.jsonl: the server has no such file \(404\)"):
        read(f"{server.url}/nothing.jsonl")
    assert len(server.requests) == 1


@pytest.mark.usefixtures("patient")
def test_a_file_that_changes_is_refused(serve: Callable[..., Any]) -> None:
    server = serve()
    with RemoteFile(f"{server.url}/shard-00.jsonl.gz") as file:
        file.read(10)
        server.files["/shard-00.jsonl.gz"] += b"more"
        file.seek(50)
        with pytest.raises(DataError, match="the file changed while it was read"):
            file.read(10)


def test_closing_ends_a_wait(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(first=600.0, most=600.0))
    server = serve(dead=frozenset({"/shard-04.jsonl.gz"}))
    stop = threading.Event()
    file = RemoteFile(f"{server.url}/shard-04.jsonl.gz", lambda line: stop.set(), stop)
    with pytest.raises(Stopped):
        file.readall()


def test_parquet_is_read_in_place(serve: Callable[..., Any]) -> None:
    server = serve(share=0.3, seed=5)
    texts = [text_of(99, row) for row in range(150)]
    buffer = io.BytesIO()
    noise = [np.random.default_rng(row).bytes(2000) for row in range(150)]
    pq.write_table(pa.table({"text": texts, "image": noise}), buffer, row_group_size=50)
    server.files["/rows.parquet"] = buffer.getvalue()
    found = [document.text for document in rows_of(RemotePlace(f"{server.url}/rows.parquet"), "text")]
    assert found == texts
    assert server.faults()


def test_damage_names_url_and_line(serve: Callable[..., Any]) -> None:
    server = serve()
    server.files["/bad.jsonl"] = b'{"text": "one"}\n{"text": 2}\n'
    with pytest.raises(DataError, match=r"http://127.*/bad\.jsonl, line 2: field 'text' is a number"):
        list(rows_of(RemotePlace(f"{server.url}/bad.jsonl"), "text"))
    server.files["/cut.jsonl.gz"] = gzip.compress(b'{"text": "one"}\n' * 99)[:-20]
    with pytest.raises(DataError, match=r"/cut\.jsonl\.gz, after line \d+: damaged gzip data"):
        list(rows_of(RemotePlace(f"{server.url}/cut.jsonl.gz"), "text"))


def test_ranges_and_lists_of_urls() -> None:
    assert urls_of("https://h/a-{08..11}.jsonl") == [f"https://h/a-{n}.jsonl" for n in ("08", "09", "10", "11")]
    assert urls_of("https://h/{en,de}/{1..2}.jsonl") == [
        f"https://h/{language}/{n}.jsonl" for language in ("en", "de") for n in (1, 2)
    ]
    c4 = "hf://datasets/allenai/c4@" + "1" * 40 + "/en/c4-train.{00000..01023}-of-01024.json.gz"
    urls = urls_of(c4)
    assert len(urls) == 1024
    assert urls[7].endswith("/datasets/allenai/c4/resolve/" + "1" * 40 + "/en/c4-train.00007-of-01024.json.gz")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://h/*.jsonl", "a web server cannot list its files; write a range such as part-{00..07}"),
        ("https://h/{a}.jsonl", "{a} is neither a range"),
        ("https://h/{5..2}.jsonl", "{5..2} is not a range"),
        ("https:///x.jsonl", "names no host"),
        ("https://h/{0..99999}{0..99999}", "stands for 10,000,000,000 files"),
        ("hf://datasets/allenai/c4/en/x.json.gz", "the revision (none) is not a commit"),
        ("hf://datasets/allenai/c4@main/en/x.json.gz", "the revision main is not a commit of 40 hex digits"),
        ("hf://models/x", "is not hf://datasets/"),
    ],
)
def test_bad_sources(source: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(source)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"data source {source}")


def test_a_source_of_several(serve: Callable[..., Any]) -> None:
    server = serve(share=0.3, seed=8)
    one, rest = server.pattern.replace("{00", "{01"), f"{server.url}/shard-00.jsonl.gz"
    source = open_source(f"{one}\n{rest}")
    assert {document.text for document in source.documents()} == ALL_TEXTS
    assert source.describe() == "shard: 9 files, over HTTP"


@pytest.mark.usefixtures("patient")
def test_the_hubs_token_goes_to_the_hub_only(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub, other = serve(), serve()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    for server in (hub, other):
        read(f"{server.url}/shard-00.jsonl.gz")
    assert hub.headers[0].get("Authorization") == "Bearer hf_secret"
    assert "Authorization" not in other.headers[0]
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        read(f"{hub.url}/shard-00.jsonl.gz")
    assert len(hub.requests) == 1


def test_a_pattern_of_the_hub_is_listed_and_read(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own protocol on loopback: its tree, then its files, at the pinned commit."""
    server, commit = serve(), "a" * 40
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    listed = []
    for name in [*server.files]:
        path = f"en/{name.strip('/')}"
        server.files[f"/datasets/org/name/resolve/{commit}/{path}"] = server.files[name]
        listed.append({"type": "file", "path": path, "size": len(server.files[name]), "oid": "0"})
    listed += [{"type": "directory", "path": "en/old", "oid": "0"}]
    listed += [{"type": "file", "path": "en/README.md", "size": 1, "oid": "0"}]
    server.files[f"/api/datasets/org/name/tree/{commit}/en"] = json.dumps(listed).encode()
    server.share, server.seed = 0.3, 6
    source = open_source(f"hf://datasets/org/name@{commit}/en/shard-*.jsonl.gz")
    assert source.name == "org/name"
    assert len(source.files) == 9
    assert {document.text for document in source.documents()} == ALL_TEXTS
    with pytest.raises(DataError, match=r"no file of org/name matches en/\*\.parquet"):
        open_source(f"hf://datasets/org/name@{commit}/en/*.parquet")
    with pytest.raises(DataError, match=r"data set org/other: the server has no such file \(404\)"):
        open_source(f"hf://datasets/org/other@{commit}/*.parquet")
