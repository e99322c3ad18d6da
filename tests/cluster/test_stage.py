"""Data and weights reach a claim by real pods, survive a killed pod, and a job that lacks them is refused."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import random
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Nodes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube, shared_claim
from tests.cluster.nodes import TRAINER
from tests.cluster.sandbox import BRIDGE_ADDRESS, UP_SECONDS
from tests.cluster.training import changed, short, start
from tests.parts.webserver import TOKEN, serving
from tools.cli import invoke
from tools.core import repo

CELL = "overlays/cpu/llama-tiny"
NOTHING = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nothing"}}'
TOOLBOX = "localhost/trainyard/toolbox:0.1.0"  # the image that base/services/stage names
WEB, S3 = 8099, 8098
LARGE = random.Random(5).randbytes(3_000_000)


@dataclass(frozen=True)
class Web:
    """A slow web server and S3 beside the control plane, which pods reach."""

    root: Path
    log: Path
    url: str = f"http://{BRIDGE_ADDRESS}:{WEB}"
    s3: str = f"http://{BRIDGE_ADDRESS}:{S3}"

    def first_bytes(self, path: str) -> list[int]:
        """Return the first byte of each request for a file."""
        lines = self.log.read_text().splitlines()
        asked = [line.split() for line in lines if line.startswith("asked")]
        return [int(first) for _, name, first in asked if name == path]


@pytest.fixture(scope="module")
def web(control_plane: ControlPlane, nodes: Nodes) -> Web:
    sandbox = control_plane.sandbox
    nodes.nodes[0].push(sandbox.root / "images/trainer.tar", TRAINER, TOOLBOX)
    root = sandbox.root / "web"
    root.mkdir()
    python = ["env", f"PYTHONPATH={repo.root()}", "AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x"]
    python += ["AWS_DEFAULT_REGION=us-east-1", sys.executable]
    pause = "0.3"  # seconds for each 64 KiB
    slow = sandbox.start("web", [*python, "-m", "tests.parts.webserver", root, BRIDGE_ADDRESS, str(WEB), pause])
    s3 = sandbox.start("s3", [*python, "-m", "moto.server", "-H", BRIDGE_ADDRESS, "-p", str(S3)])
    fill = (
        f"import boto3; s3 = boto3.client('s3', endpoint_url='http://{BRIDGE_ADDRESS}:{S3}');"
        "s3.create_bucket(Bucket='corpus');"
        "[s3.put_object(Bucket='corpus', Key=k, Body=k.encode(), ACL='public-read')"
        " for k in ('texts/a.txt', 'texts/deep/b.txt')]"
    )

    def filled() -> bool:
        words = [*sandbox.enter(), *python, "-c", fill]
        return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0

    sandbox.wait("S3", filled, UP_SECONDS, [slow, s3])
    return Web(root, slow.log)


@dataclass(frozen=True)
class Team:
    """A namespace with the claim `trainyard`, and the directory behind it."""

    name: str
    volume: Path
    yard: Callable[..., tuple[int, Any, str]]

    def staged(self, *words: str) -> Any:
        code, answer, said = self.yard("stage", *words, "--timeout", "300")
        assert code == 0, said
        return answer


@pytest.fixture
def team(kube: Kube, nodes: Nodes, asked: None, capsys: pytest.CaptureFixture[str]) -> Iterator[Team]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    kube.make_namespace(name, enforce="restricted")
    volume = start(kube, name, NOTHING).volume
    yield Team(name, volume, functools.partial(_yard, capsys, name))
    kube.call("delete", "pytorchjobs,jobs", "--all", f"--namespace={name}", "--wait=false")
    kube.delete_namespace(name)


def _yard(capsys: pytest.CaptureFixture[str], namespace: str, *words: str) -> tuple[int, Any, str]:
    """Return exit code, answer and messages of a command."""
    capsys.readouterr()
    code = invoke([*words, "-n", namespace, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def files(root: Path) -> dict[str, str]:
    """Return the digest of each file below a directory."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_directory_of_this_machine_is_sent(kube: Kube, web: Web, team: Team, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    (source / "deep").mkdir(parents=True)
    (source / "deep/large.txt").write_bytes(LARGE)
    (source / "empty.txt").touch()
    (source / "rows.jsonl").write_text('{"text": "a"}\n')
    answer = team.staged(str(source))
    assert (answer["place"], answer["files"]) == ("trainyard:text/corpus", 3)
    assert files(team.volume / "text/corpus") == files(source)
    assert team.staged(str(source))["fetched"] == 0, "nothing is sent twice"
    assert kube.list("jobs", team.name) == []
    kube.wait("the pods to go", lambda: not kube.list("pods,networkpolicies", team.name), 120)
    copied = team.staged("trainyard:text/corpus/deep", "--to", "trainyard:text/copy")
    assert (copied["files"], files(team.volume / "text/copy")) == (1, files(source / "deep"))


def test_a_killed_pod_continues_and_an_archive_is_unpacked(kube: Kube, web: Web, team: Team, tmp_path: Path) -> None:
    with tarfile.open(web.root / "shards.tar", "w") as archive:
        entry = tarfile.TarInfo("shards/part.hdf5")
        entry.size = len(LARGE)
        archive.addfile(entry, io.BytesIO(LARGE))
    words = ["stage", f"{web.url}/shards.tar", "-n", team.name, "--json"]
    command = subprocess.Popen(
        [sys.executable, "-m", "tools.cli", *words],
        cwd=repo.root(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    place = team.volume / "text"
    marks = lambda: [int(path.read_text() or 0) for path in place.glob(".shards.*/parts/*.size")]  # noqa: E731
    kube.wait("half of it", lambda: sum(marks()) > 500_000, 300)
    (pod,) = [one["metadata"]["name"] for one in kube.list("pods", team.name)]
    kube.run("delete", "pod", pod, f"--namespace={team.name}", "--grace-period=0", "--force")
    assert not (place / "shards").exists(), "the control: it was killed before its end"
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    assert files(place / "shards") == {"shards/part.hdf5": hashlib.sha256(LARGE).hexdigest()}
    assert max(web.first_bytes("/shards.tar")) > 500_000, "it continued in the middle"
    assert json.loads(out)["fetched"] < len(LARGE)
    assert list(place.glob(".*")) == []


@pytest.mark.cluster_all
def test_s3_and_a_gated_model_come_by_the_pod(
    kube: Kube, web: Web, team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("--env", f"AWS_ENDPOINT_URL={web.s3}", "--env", "AWS_REGION=us-east-1", "--no-sign-request")
    assert team.staged("s3://corpus/texts", *there)["files"] == 2
    assert sorted(files(team.volume / "text/texts")) == ["a.txt", "deep/b.txt"]

    model = web.root / "hub/team/gated-1b"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(LARGE[:100_000])
    words = ("stage", "hf://team/gated-1b", "--env", f"HF_ENDPOINT={web.url}")
    code, _, said = team.yard(*words)
    assert (code, "HF_TOKEN" in said) == (1, True), said
    with serving(tmp_path) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("MINE", "not_a_good_token")
        code, _, said = team.yard("secret", "hf-token", "--from-env", "MINE")
        assert (code, "refuses this token (401): nothing was stored" in said) == (1, True), said
        assert kube.get("secret", "hf-token", team.name) is None
        monkeypatch.setenv("MINE", TOKEN)
        code, answer, said = team.yard("secret", "hf-token", "--from-env", "MINE")
    secret = kube.get("secret", "hf-token", team.name)
    assert secret is not None
    assert (code, answer["owner"], answer["uid"]) == (0, "someone", secret["metadata"]["uid"])
    assert TOKEN not in said + json.dumps(answer)
    assert team.yard(*words)[0] == 0
    assert sorted(files(team.volume / "models/gated-1b")) == ["config.json", "model.safetensors"]


@pytest.mark.cluster_all
def test_a_volume_that_is_too_small_is_refused(kube: Kube, nodes: Nodes, web: Web, team: Team, tmp_path: Path) -> None:
    for node in nodes.nodes:
        small = "mkdir -p /run/small && mount -t tmpfs -o size=1m,mode=1777 tmpfs /run/small"
        subprocess.run([*node.enter(), "sh", "-c", small], check=True)
    volume, claim = shared_claim(team.name, "small")
    volume["spec"]["hostPath"] = {"path": "/run/small"}
    kube.put([volume, claim], team.name)
    (web.root / "large.bin").write_bytes(LARGE)
    code, _, said = team.yard("stage", f"{web.url}/large.bin", "--to", "small:text/large")
    assert (code, "needs at least 2.9 MiB more" in said) == (1, True), said
    kube.run("delete", "pv", volume["metadata"]["name"], "--wait=false")
    code, _, said = team.yard("stage", str(tmp_path), "--to", "none:text/large")
    assert (code, "has no claim none" in said) == (2, True), said


@pytest.mark.cluster_all
def test_a_streamed_cell_needs_nothing_on_the_volume(kube: Kube, web: Web, team: Team) -> None:
    words = ("job", "submit", "p5/llama-3-1-8b", "--dry-run")
    code, _, said = team.yard(*words)
    assert (code, "/shared/text, /shared/models/Llama-3.1-8B: not on the volume" in said) == (1, True), said
    code, answer, said = team.yard(*words, "--feature", "stream-c4")
    assert (code, answer["result"]) == (0, "would be applied"), said
    assert kube.list("jobs,pods", team.name) == []
    code, _, said = team.yard(*words, "--feature", "stream-c4", "--set", "data.tokenizer=meta-llama/x@main")
    assert (code, "no Secret hf-token" in said) == (1, True), said
    assert f"yard secret hf-token -n {team.name}" in said


def test_a_job_is_refused_until_its_text_and_tokenizer_are_staged(
    kube: Kube, web: Web, team: Team, rendered: dict[str, str], tmp_path: Path
) -> None:
    """The road: submit names the commands, they run, submit looks again, the job trains."""
    cell = tmp_path / "cell"
    cell.mkdir()
    words = {"tokenizer: train ": "tokenizer: /shared/models/words "}
    manifest = changed(short(rendered[CELL], steps=20000), words)
    text = next(line for line in manifest.splitlines() if "source: " in line).split("source: ")[1].split()[0]
    (cell / "job.yaml").write_text(manifest.replace(f"source: {text}", "source: /shared/text"))
    (cell / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    code, _, said = team.yard("job", "submit", str(cell), "--no-follow")
    assert code == 1, said
    assert f"yard stage SOURCE --to trainyard:text/NAME -n {team.name}" in said
    assert 'hf://ORGANISATION/words --include "tokenizer*" --to trainyard:models/words' in said
    assert kube.list("pytorchjobs", team.name) == []

    from training.data import tokenizer

    texts = [path.read_text(errors="replace") for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    tokenizer.train(iter(texts), 1000).write(tmp_path / "words")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, one in enumerate(texts * 3):
        (corpus / f"{number}.txt").write_text(f"{number}\n{one}")
    team.staged(str(tmp_path / "words"), "--to", "trainyard:models/words")
    team.staged(str(corpus))
    code, answer, said = team.yard("job", "submit", str(cell), "--timeout", "900")
    assert (code, answer["result"]) == (0, "trains"), said
    assert "PASS tokenizer: /shared/models/words was staged" in said
    assert "PASS data: /shared/text was staged" in said
