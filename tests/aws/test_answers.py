"""Answers that are not of AWS or Kubernetes: one sentence, exit code 3, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from tests.aws.conftest import Change, StandIn, Yard
from tests.aws.test_troubles import COMMANDS, KUBECTL_COMMANDS, account, clients_once, wire
from tests.aws.wire import XML, Wire, _Body
from tools import cli
from tools.aws import session as sessions
from tools.aws.session import AwsError, Session
from tools.cells import kustomize

__all__ = ["account", "clients_once", "wire"]
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS")
REGION = "us-west-2"
PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please log in.</body></html>"
Reply = tuple[int, dict[str, str], bytes]
# What a proxy, a captive portal or another implementation answers, and a part of our error.
REPLIES: dict[str, tuple[Reply, str]] = {
    "a page": ((200, {"Content-Type": "text/html"}, PAGE), "HTTP status 200 and an HTML page"),
    "a redirect": ((302, {"Location": "https://login.example.com/?user=1"}, PAGE), "to login.example.com"),
    "a forbidden page": ((403, {"Content-Type": "text/html"}, PAGE), "HTTP status 403 and an HTML page"),
    "a login at the proxy": ((407, {}, b"Proxy Authentication Required"), "cannot be read"),
    "a word": ((403, {}, b"Forbidden"), "cannot be read"),
    "nothing": ((200, {}, b""), "cannot be read"),
    "no content": ((404, {}, b""), "HTTP status 404"),
    "a cut answer": ((200, {}, b'{"clusters": ["a'), "cannot be read"),
    "another JSON": ((200, {}, b'["clusters"]'), "cannot be read"),
    "a number": ((200, {}, b"17"), "cannot be read"),
    "another XML": ((200, {}, b"<Answer><Vpcs/></Answer>"), "cannot be read"),
    "bytes": ((200, {}, bytes(range(256))), "cannot be read"),
    "false compression": ((200, {"Content-Encoding": "gzip"}, gzip.compress(PAGE)[:30]), "cannot be read"),
    "a deep list": ((200, {}, b"[" * 100_000), "cannot be read"),
    "an error of another shape": ((400, {}, b'{"__type": 7, "message": {"a": 1}}'), "cannot be read"),
}
ECR = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/train"
IMAGE_COMMANDS = (
    f"image build {{root}} --remote --tag-from time --repository {ECR}",
    f"image build {{root}} --cleanup --repository {ECR}",
    f"image push a:1 --to {ECR}:1",
)
DOCKER = """#!/bin/sh
case "$1" in
version) echo '{"Client": {"Version": "28.0"}, "Server": {"Version": "28.0"}}';;
image) echo '[{"Id": "sha256:1", "Size": 1, "Architecture": "amd64", "Config": {}}]';;
esac
"""


class Foreign(ThreadingHTTPServer):
    """A server that gives one reply to every request."""

    reply: Reply = (200, {}, b"")
    asked = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Foreign

    def _answer(self) -> None:
        self.server.asked += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = self.server.reply
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def foreign() -> Iterator[Foreign]:
    with Foreign(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.usefixtures("clients_once", "checkout")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_foreign_answer_is_one_sentence(
    command: str, foreign: Foreign, yard: Yard, change: Change, stand_in: StandIn, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every command gets every reply. Its first request already fails."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", foreign.address.replace("//", "//user:pw@"))
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    stand_in("aws")
    change("gpu", CLUSTER_VPC_ID="vpc-1", CLUSTER_SECURITY_GROUP_IDS="sg-1")
    change("gpu-hyperpod", CLUSTER_NAME="gpu-hyperpod-eks")
    for name, (reply, said) in REPLIES.items():
        foreign.reply, foreign.asked = reply, 0
        ran = yard(*command.split())
        assert (ran.code, ran.out, ran.err.count("error:")) == (3, "", 1), (name, ran)
        assert said in ran.err, (name, ran)
        host = foreign.address.partition("//")[2]
        assert (host in ran.err, "user" in ran.err, "pw" in ran.err) == (True, False, False), (name, ran)
        assert foreign.asked == 1, name


@pytest.mark.usefixtures("clients_once")
@pytest.mark.parametrize("command", IMAGE_COMMANDS)
def test_a_foreign_answer_to_a_build_on_aws_is_one_sentence(
    command: str, foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", foreign.address)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nUSER 1000\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, (reply, said) in REPLIES.items():
        foreign.reply, foreign.asked = reply, 0
        code = cli.invoke(command.format(root=tmp_path).split())
        shown = capsys.readouterr()
        assert (code, shown.out, shown.err.count("error:")) == (3, "", 1), (name, shown)
        assert said in shown.err, (name, shown)
        assert foreign.asked == 1, name


class Emptied:
    """An answer of the right form that has nothing in it."""

    def answer(self, request: Any, service: str, operation: str) -> AWSResponse:
        xml = f"<{operation}Response><{operation}Result/></{operation}Response>"
        headers = {"content-type": "text/xml" if service in XML else "application/json"}
        return AWSResponse(request.url, 200, headers, _Body((xml if service in XML else "{}").encode()))


@pytest.mark.usefixtures("clients_once")
@pytest.mark.parametrize("command", [one for one in COMMANDS if "--yes" not in one])
def test_an_answer_without_its_keys_is_no_traceback(wire: Wire, command: str, yard: Yard) -> None:
    """Each operation in turn answers with nothing, and all others as usual."""
    ran = yard(*command.split())
    operations = set(wire.asked)
    assert operations, f"control: it calls AWS; {ran}"
    wire.trouble = Emptied()  # type: ignore[assignment]
    for one in sorted(operations):
        wire.allowed = operations - {one}
        ran = yard(*command.split())  # which would raise here
        assert ran.code in (0, 1, 2, 3), (one, ran)
        assert ran.err.count("error:") <= 1, (one, ran)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"cluster": {"name": 5}}, "5 is not of the type string"),
        ({"cluster": [1]}, "[1] is not of the type structure"),
        ({"cluster": {"tags": "x"}}, "'x' is not of the type map"),
        ({"cluster": {"createdAt": "soon"}}, "soon"),
        ({"cluster": {"resourcesVpcConfig": {"subnetIds": "subnet-1"}}}, "is not of the type list"),
        ({}, "it lacks cluster"),
    ],
)
def test_wrong_types_and_missing_keys_are_named(
    answer: dict[str, Any], said: str, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", foreign.address)
    foreign.reply = (200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
    with pytest.raises(AwsError, match="eks:DescribeCluster in us-west-2: the answer of 127") as caught:
        Session(REGION).call("eks", "describe_cluster", name="gpu")["cluster"]
    assert (caught.value.kind, caught.value.code) == ("unreadable", 3)
    assert said in caught.value.message


@pytest.mark.parametrize("same", [True, False], ids=["the same token", "new tokens"])
def test_a_listing_without_an_end_ends(same: bool, foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", foreign.address)
    monkeypatch.setattr(sessions, "MOST_PAGES", 5)
    monkeypatch.setattr(
        Foreign, "reply", property(lambda self: (200, {}, json.dumps(
            {"clusters": ["a"], "nextToken": "t" if same else f"t{self.asked}"}).encode()))
    )  # fmt: skip
    foreign.__dict__.pop("reply", None)
    with pytest.raises(AwsError, match="same next token" if same else "more than 5 pages") as caught:
        list(Session(REGION).pages("eks", "list_clusters", "clusters"))
    assert caught.value.code == 3


KUBE_REPLIES = {
    "a page": (f"echo '{PAGE.decode()}'", "an HTML page"),
    "a page as an error": (f"echo '{PAGE.decode()}' >&2; exit 1", "an HTML page"),
    "a word": ("echo Forbidden", "not an object of Kubernetes"),
    "a list": ("echo '[1, 2]'", "not an object of Kubernetes"),
    "another object": ("""echo '{"items": 7}'""", "not an object of Kubernetes"),
    "objects without names": ("""echo '{"items": [{"spec": {}}]}'""", "not an object of Kubernetes"),
    "a text for a part": (
        """echo '{"items": [{"metadata": {"name": "a"}, "spec": "x"}]}'""", "not an object of Kubernetes"
    ),
}  # fmt: skip
JOB_COMMANDS = (
    *(
        "status x",
        "why x",
        "logs x",
        "list",
        "stop x",
        "retry x",
        "metrics x",
        "rank0 x",
        "cp x checkpoints {directory}",
    ),
    *("exec x --json ls", "debug x", "devices x"),
)


@pytest.mark.parametrize("name", KUBE_REPLIES)
def test_a_foreign_answer_of_kubectl_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script, said = KUBE_REPLIES[name]
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kustomize, "ensure", lambda root, say: None)
    commands = [f"cluster {one}" for one in KUBECTL_COMMANDS if "run" not in one]
    for row in (*commands, *(f"job {one} -n team-a" for one in JOB_COMMANDS)):
        command = row.format(directory=tmp_path / "none")
        code = cli.invoke(command.split())
        shown = capsys.readouterr()
        assert (code, shown.err.count("error:")) == (3, 1), (command, shown)
        assert said in shown.err, (command, shown)
