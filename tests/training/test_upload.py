"""A model on S3: complete or absent, read back, retried, and refused by name. The server is moto's."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import boto3
import pytest
from werkzeug.serving import make_server

from tests.parts import moto
from tests.training.bert import conftest as tiny_bert
from tests.training.inprocess import Texts, losses, run
from training import bert
from training.config import ConfigError, apply_override, load_texts
from training.run.failure import UploadError, classify
from training.upload import MANIFEST, check, upload

TO = "s3://models/team/tiny"


Server = moto.Faulty


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    app = Server()
    with moto.server(app) as url:
        moto.use(url, monkeypatch, tmp_path)
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="models")
        for item in client.list_objects_v2(Bucket="models").get("Contents", []):  # moto's state is the process's
            client.delete_object(Bucket="models", Key=item["Key"])
        app.requests.clear()
        yield app


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small file, and one in a subdirectory that is sent in several parts."""
    directory = tmp_path / "model"
    (directory / "more").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "more" / "large.safetensors").write_bytes(bytes(range(256)) * (80 << 10))
    return directory


def there() -> dict[str, Any]:
    body = boto3.client("s3").get_object(Bucket="models", Key=f"team/tiny/{MANIFEST}")["Body"]
    return json.loads(body.read())


def has_manifest() -> bool:
    listed = boto3.client("s3").list_objects_v2(Bucket="models").get("Contents", [])
    return any(item["Key"].endswith(MANIFEST) for item in listed)


def test_a_model_is_complete_and_its_manifest_comes_last(server: Server, model: Path) -> None:
    lines: list[str] = []
    done = upload(model, TO, "tiny", 7, lines.append)
    assert (done.files, done.nbytes, done.step) == (2, 2 + (20 << 20), 7)
    manifest = there()
    assert (manifest["run"], manifest["step"]) == ("tiny", 7)
    client = boto3.client("s3")
    for name, entry in manifest["files"].items():
        body = client.get_object(Bucket="models", Key=f"team/tiny/{name}")["Body"].read()
        assert body == (model / name).read_bytes()
        assert entry == {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        head = client.head_object(Bucket="models", Key=f"team/tiny/{name}", ChecksumMode="ENABLED")
        assert head["ChecksumSHA256"]  # S3 itself checked the content
    assert server.sent()[-1] == MANIFEST
    assert server.sent().count(MANIFEST) == 1


def test_a_second_upload_sends_nothing_but_reads_back(server: Server, model: Path) -> None:
    upload(model, TO, "tiny", 7, print)
    server.requests.clear()
    upload(model, TO, "tiny", 7, print)
    assert server.sent() == []
    server.flipped = "large.safetensors"
    with pytest.raises(UploadError, match=r"large\.safetensors: SHA-256 .* was read back"):
        upload(model, TO, "tiny", 7, print)


def test_a_model_that_reads_back_wrong_gets_no_manifest(server: Server, model: Path) -> None:
    server.flipped = "config.json"
    with pytest.raises(UploadError, match=r"s3://models/team/tiny.*config\.json") as caught:
        upload(model, TO, "tiny", 7, print)
    assert classify(caught.value) == "upload"
    assert not has_manifest()


def test_a_busy_server_is_retried_and_a_dead_one_is_an_error(
    server: Server, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.run.bucket.ATTEMPTS", 3)
    server.unavailable = 2
    upload(model, TO, "tiny", 7, print)
    assert there()["step"] == 7
    server.unavailable = 1000
    with pytest.raises(UploadError, match="503"):
        upload(model, "s3://models/other", "tiny", 7, print)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(UploadError, match="Could not connect"):
        upload(model, TO, "tiny", 7, print)


def test_a_later_step_replaces_and_another_run_is_refused(server: Server, model: Path) -> None:
    upload(model, TO, "tiny", 7, print)
    (model / "config.json").write_text('{"later": 1}')
    server.requests.clear()
    upload(model, TO, "tiny", 9, print)
    assert server.sent()[0] == MANIFEST  # while files change, the manifest names neither model
    assert there()["step"] == 9
    with pytest.raises(ConfigError, match="holds the model of run tiny; use another prefix"):
        upload(model, TO, "huge", 1, print)
    with pytest.raises(ConfigError, match="holds the model of run tiny"):
        check(TO, "huge", print)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("s3://nowhere-at-all/x", "there is no such bucket"),
        ("models/team", r"write s3://bucket/prefix"),
        ("s3://models", r"write s3://bucket/prefix"),
        ("https://models/x", r"write s3://bucket/prefix"),
    ],
)
def test_a_wrong_destination_is_one_error_before_and_after(server: Server, model: Path, to: str, says: str) -> None:
    for call in (lambda: check(to, "tiny", print), lambda: upload(model, to, "tiny", 7, print)):
        with pytest.raises(ConfigError, match=says):
            call()


def test_credentials_are_the_pods(server: Server, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """EKS Pod Identity: an agent on the node gives credentials for the service account's token."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=r"no credentials \(Unable to locate.*EKS Pod Identity"):
        upload(model, TO, "tiny", 7, print)
    seen: list[str | None] = []
    agent = make_server("127.0.0.1", 0, _agent(seen))
    thread = threading.Thread(target=agent.serve_forever, daemon=True)
    thread.start()
    (tmp_path / "token").write_text("the-pods-token")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{agent.server_port}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    try:
        upload(model, TO, "tiny", 7, print)
    finally:
        agent.shutdown()
        thread.join(10)
    assert set(seen) == {"the-pods-token"}


def test_a_run_uploads_its_model_and_retries_a_failed_upload(
    server: Server, texts: Texts, data_root: Path, tmp_path: Path
) -> None:
    """The report exists when the upload fails; starting the run again only uploads the model."""
    wanted = ("train.steps=4", "upload.to=s3://models/team/tiny", "upload.dtype=bfloat16")
    server.flipped = "model.safetensors"
    with pytest.raises(UploadError, match=r"model\.safetensors"):
        run(texts, wanted, tmp_path / "tiny", data_root)
    assert (tmp_path / "tiny" / "report.json").exists()
    assert not has_manifest()
    server.flipped = ""
    done = run(texts, wanted, tmp_path / "tiny", data_root)
    assert len(losses(done)) == 4
    assert {"config.json", "model.safetensors"} <= set(there()["files"])
    assert (there()["run"], there()["step"]) == ("tiny", 4)
    server.requests.clear()
    run(texts, wanted, tmp_path / "tiny", data_root)
    assert server.sent() == []
    with pytest.raises(ConfigError, match="holds the model of run tiny"):
        run(texts, wanted, tmp_path / "other", data_root)
    assert not (tmp_path / "other" / "metrics.jsonl").exists()  # refused before the first step


def test_a_bert_run_uploads_its_model(server: Server, corpus: Path, data_root: Path, tmp_path: Path) -> None:
    """With both heads of its pre-training and its tokenizer."""
    texts = {
        "model": ("model.yaml", tiny_bert.MODEL.format(source=corpus)),
        "hardware": ("hardware.yaml", tiny_bert.HARDWARE),
        "cell": ("cell.yaml", tiny_bert.CELL),
    }
    wanted = ("train.steps=4", "train.eval_every=4", f"upload.to={TO}")
    run(texts, wanted, tmp_path / "tiny", data_root, task=bert.TASK)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(there()["files"])
    body = boto3.client("s3").get_object(Bucket="models", Key="team/tiny/config.json")["Body"]
    assert json.loads(body.read())["architectures"] == ["BertForPreTraining"]


def test_impossible_uploads_are_refused_with_their_line(texts: Texts) -> None:
    with pytest.raises(ConfigError, match=r"upload\.merge adds adapters to their base, but lora is missing"):
        load_texts(apply_override(apply_override(texts, "upload.to=s3://models/x"), "upload.merge=true"))
    with pytest.raises(ConfigError, match=r"cell\.yaml.*upload\.to: 'models/x' is not a prefix in a bucket"):
        load_texts(apply_override(texts, "upload.to=models/x"))


def _agent(seen: list[str | None]) -> Callable[[WSGIEnvironment, StartResponse], list[bytes]]:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        seen.append(environ.get("HTTP_AUTHORIZATION"))
        given = {
            "AccessKeyId": "pod", "SecretAccessKey": "pod", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"
        }  # fmt: skip
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(given).encode()]

    return answer
