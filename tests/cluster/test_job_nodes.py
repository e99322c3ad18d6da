"""`yard job` on real nodes: a job that really trains, and containers that really fail."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.conftest import Nodes
from tests.cluster.kube import Kube
from tests.cluster.training import JOB, short_to_submit, start
from tools.cli import invoke
from tools.core import repo
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.snapshot.collect import find
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import parse

CELL = "overlays/cpu/llama-tiny"
# What `start` applies behind the claim, where the job comes by another way.
NOTHING = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nothing"}}'
SECONDS = 600.0  # until kubelet, operator and trainer have failed for good, on a busy machine too


@pytest.fixture
def team(kube: Kube, nodes: Nodes, asked: None) -> Iterator[str]:
    """The test's own namespace, with `yard` configured for this cluster."""
    yield from _namespace(kube)


@pytest.fixture
def other_team(kube: Kube) -> Iterator[str]:
    """A second namespace."""
    yield from _namespace(kube)


def _namespace(kube: Kube) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    kube.make_namespace(name, enforce="restricted")
    yield name
    kube.call("delete", "pytorchjobs", "--all", f"--namespace={name}", "--wait=false")
    kube.delete_namespace(name)


def test_a_job_is_submitted_and_watched(
    kube: Kube,
    nodes: Nodes,
    team: str,
    other_team: str,
    rendered: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From submit to stop and resume. Meanwhile another job's pods do not fit, and `why` names the
    resource.
    """
    cell = tmp_path / "cell"
    cell.mkdir()
    (cell / "job.yaml").write_text(short_to_submit(rendered[CELL], steps=20000))
    (cell / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    start(kube, team, NOTHING)

    def asked(*words: str) -> Any:
        capsys.readouterr()
        assert invoke(["job", *words, "-n", team, "--json"]) == 0, capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    submitted = asked("submit", str(cell), "--timeout", "900")
    (uid,) = (one["uid"] for one in submitted["objects"] if one["kind"] == "PyTorchJob")
    assert submitted["result"] == "trains"
    assert submitted["step"]["step"] >= 1

    waiting = start(kube, other_team, (cell / "job.yaml").read_text())
    kube.wait("a pod that waits", lambda: waiting.pod(1).get("status", {}).get("phase") == "Pending", 60)
    _until("unschedulable/cpu", other_team)
    kube.run("delete", "pytorchjob", JOB, f"--namespace={other_team}")

    status = asked("status")
    assert (status["uid"], status["training"]["source"]) == (uid, "the run's own files")
    assert sorted(rank for pod in status["pods"] for rank in pod["ranks"]) == [0, 1]
    assert asked("why")["state"] == "healthy"
    first = asked("rank0")
    assert first["certain"]
    assert "heartbeat" in first["how"]

    capsys.readouterr()
    assert invoke(["job", "logs", "-n", team, "--rank", "0", "--grep", "^step "]) == 0
    assert " loss " in capsys.readouterr().out
    other = next(pod["pod"] for pod in status["pods"] if pod["ranks"] == [1])
    words = ["job", "exec", JOB, "-n", team, "--rank", "1", "--", "hostname"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *words],
        cwd=repo.root(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == other

    out = tmp_path / "out"
    kube.wait("a checkpoint", lambda: bool(asked("status")["training"]["checkpoints"]), SECONDS)
    copied = asked("cp", JOB, "checkpoints", str(out))
    names = {file["name"] for file in copied["files"]}
    assert "checkpoints/LATEST" in names
    for path in (out / "checkpoints").glob("step-*"):
        manifest = json.loads((path / "MANIFEST.json").read_text())
        for name, facts in manifest["files"].items():
            assert hashlib.sha256((path / name).read_bytes()).hexdigest() == facts["sha256"], path / name

    board = asked("tensorboard", JOB, "--no-forward")
    assert {one["kind"] for one in board["objects"]} == {"Deployment", "NetworkPolicy", "Service"}
    assert len(asked("tensorboard", "--stop")["removed"]) == 3
    assert asked("debug")["verdict"] == "PASS"

    stopped = asked("stop", JOB)
    assert (stopped["uid"], stopped["result"], stopped["saved"]) == (uid, "suspended", True)
    assert kube.list("pods", team, f"training.kubeflow.org/job-name={JOB}") == []
    assert invoke(["job", "submit", str(cell), "-n", team, "--resume", "--json", "--timeout", "900"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["step"]["step"] > stopped["step"]


def _command(job: Object, objects: list[Object]) -> None:
    _container(job)["command"] = ["no-such-program"]


def _image(job: Object, objects: list[Object]) -> None:
    _container(job)["image"] = "localhost:1/trainyard/none:0.1.0"


def _never(job: Object, objects: list[Object]) -> None:
    _container(job)["image"] = "localhost/trainyard/none:0.1.0"
    _container(job)["imagePullPolicy"] = "Never"


def _key(job: Object, objects: list[Object]) -> None:
    job["spec"]["runPolicy"]["backoffLimit"] = 1
    for one in objects:
        if one["kind"] == "ConfigMap" and "model.yaml" in one["data"]:
            one["data"]["model.yaml"] = one["data"]["model.yaml"].replace("learning_rate:", "lerning_rate:")


def _container(job: Object) -> Object:
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    found: Object = spec["containers"][0]
    return found


@pytest.mark.parametrize(
    ("cause", "plant"),
    [
        ("command", _command),
        ("image-registry", _image),
        ("image-absent", _never),
        ("config", _key),
    ],
)
def test_why_names_what_fails_in_a_container(
    cause: str,
    plant: Callable[[Object, list[Object]], None],
    kube: Kube,
    nodes: Nodes,
    team: str,
    rendered: dict[str, str],
) -> None:
    objects = parse(rendered[CELL], CELL).objects
    plant(next(one for one in objects if one["kind"] == "PyTorchJob"), objects)
    start(kube, team, NOTHING)
    kube.put(objects, team)
    _until(cause, team)
    if cause == "config":
        kube.wait("the pods to go", lambda: not kube.list("pods", team), SECONDS)
        found = _until(cause, team)
        assert "unknown key train.lerning_rate" in found.causes[0].evidence[0], "without a pod and its log"


def _until(cause: str, team: str) -> Explanation:
    """Ask `why` until it gives the expected answer, and return it."""
    began = time.monotonic()
    while True:
        found = explain(find(Kubectl(None, team), JOB, around=True)[1])
        said = found.causes[0].kind if found.causes else found.name
        if said == cause or time.monotonic() - began > SECONDS:
            break
        time.sleep(1.0)
    assert said == cause, [(each.kind, each.evidence) for each in found.causes]
    return found
