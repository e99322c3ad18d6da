"""Progress as Kubeflow Trainer's status server gets it, and a server that refuses."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from training.run import trainer_status
from training.run.trainer_status import TrainerStatus

WHERE = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/job/status"


class Server(HTTPServer):
    """An HTTPS server on the loopback interface that keeps what it was sent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.got = 200, list[tuple[str, str, Any]]()
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "tls.key", "-out", "ca.crt"]
        subprocess.run([*words, *names], cwd=folder, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "tls.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, with the variables that Trainer sets in a pod."""
    found = Server(tmp_path)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("secret\n", encoding="utf-8")
    monkeypatch.setattr(trainer_status, "SECONDS", 60.0)
    monkeypatch.setenv(trainer_status.URL, f"https://127.0.0.1:{found.server_port}{WHERE}")
    monkeypatch.setenv(trainer_status.CERTIFICATE, str(tmp_path / "ca.crt"))
    monkeypatch.setenv(trainer_status.TOKEN, str(tmp_path / "token"))
    yield found
    found.shutdown()
    found.server_close()


def test_progress_reaches_the_status_server(server: Server) -> None:
    said: list[str] = []
    status = TrainerStatus(said.append)
    status.send(25, 100, 61.7, {"loss": 2.5})
    status.close()
    ((path, token, body),) = server.got
    sent = body["trainerStatus"]
    assert (path, token, said) == (WHERE, "Bearer secret", [])
    assert (sent["progressPercentage"], sent["estimatedRemainingSeconds"]) == (25, 61)
    assert sent["metrics"] == [{"name": "loss", "value": "2.5"}]


def test_a_refusal_is_said_once(server: Server) -> None:
    server.answer, said = 403, list[str]()
    status = TrainerStatus(said.append)
    for step in (1, 2):
        status.send(step, 2, 0.0, {})
        status.close()
    assert len(server.got) == 2
    assert len(said) == 1
    assert "403" in said[0]


def test_a_foreign_certificate_gets_no_token(server: Server, tmp_path: Path) -> None:
    own = tmp_path / "other"
    own.mkdir()
    Server(own).server_close()
    (tmp_path / "ca.crt").write_bytes((own / "ca.crt").read_bytes())
    said: list[str] = []
    status = TrainerStatus(said.append)
    status.send(1, 2, 0.0, {})
    status.close()
    assert (server.got, len(said)) == ([], 1)


def test_without_the_address_nothing_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(trainer_status.URL)
    status = TrainerStatus(pytest.fail)
    status.send(1, 2, 0.0, {})
    status.close()
    assert server.got == []
