"""`yard job` on real nodes: a job that really trains, and containers that really fail."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.conftest import Nodes
from tests.cluster.kube import Kube
from tests.cluster.training import JOB, Training, short_to_submit, start
from tools.cli import invoke
from tools.core import repo
from tools.facts.instances import instance
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.snapshot.collect import find
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import parse

CELL = "overlays/cpu/llama-tiny"
# What `start` applies behind the claim, where the job comes by another way.
NOTHING = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nothing"}}'
WAIT = 4.0  # seconds without a node for the job
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
    resource. While the first job is suspended, another one waits for nodes, trains, is killed and resumes: its
    ledger has all of that.
    """
    cell = tmp_path / "cell"
    cell.mkdir()
    (cell / "job.yaml").write_text(short_to_submit(rendered[CELL], steps=20000))
    (cell / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    began = start(kube, team, NOTHING)

    def asked(*words: str, namespace: str = team) -> Any:
        capsys.readouterr()
        assert invoke(["job", *words, "-n", namespace, "--json"]) == 0, capsys.readouterr()
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
    second = next(pod["pod"] for pod in status["pods"] if pod["ranks"] == [1])
    words = ["job", "exec", JOB, "-n", team, "--rank", "1", "--", "hostname"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *words],
        cwd=repo.root(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == second

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
    other = _killed(kube, nodes, other_team, (cell / "job.yaml").read_text(), began.volume)
    _check_ledger(other, functools.partial(asked, namespace=other_team))
    kube.run("delete", "pytorchjob", JOB, f"--namespace={other_team}")
    assert invoke(["job", "submit", str(cell), "-n", team, "--resume", "--json", "--timeout", "900"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["step"]["step"] > stopped["step"]


def _killed(kube: Kube, nodes: Nodes, team: str, manifest: str, prepared: Path) -> Training:
    """Return a job that waited for nodes, trained, was killed behind a checkpoint, and trains again."""
    for node in nodes.nodes:
        kube.run("cordon", node.name)
    job = start(kube, team, manifest, prepared)
    kube.wait("a pod that waits", lambda: job.pod(1).get("status", {}).get("phase") == "Pending", 60)
    time.sleep(WAIT)
    for node in nodes.nodes:
        kube.run("uncordon", node.name)
    job.wait_step(28)  # the first checkpoint is of step 20: eight steps are lost at least
    pod, before = job.pod(1), job.restarts(1)
    nodes.of(pod).kill_container(pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://"))
    kube.wait("a restart", lambda: job.restarts(1) > before, SECONDS)
    job.wait_step(job.last_step() + 5)
    return job


def _check_ledger(job: Training, asked: Callable[..., Any]) -> None:
    """Every second since the job was created is in one category, and the cost is that of the nodes to the cent."""
    kind = "m5.xlarge"
    before = job.beats()
    (found,) = asked("goodput", JOB, "--instance", kind)["runs"]
    after = job.beats()
    seconds, created = found["seconds"], job.created()
    assert sum(seconds.values()) == found["rank_seconds"]
    ends = [sum(beats[rank]["time"] - created for rank in (0, 1)) for beats in (before, after)]
    assert ends[0] - 1 <= found["rank_seconds"] <= ends[1] + 1, "the wall time of both ranks"
    price = Fraction(str(instance(kind).price_usd_per_hour))
    cost = price * (found["rank_seconds"] - seconds["queued"]) / 3600
    assert abs(Fraction(found["usd"]) - cost) <= Fraction(6, 1000), "the nearest cent, of seconds that are rounded"
    assert sum(map(Fraction, found["usd_by_category"].values())) == Fraction(found["usd"])
    assert seconds["queued"] >= 2 * (WAIT - 1), "both ranks waited for nodes"
    lost = ("start and import", "training", "restart and rendezvous", "lost to redo")
    assert [name for name in lost if not seconds[name]] == []
    assert found["restarts"] >= 1
    assert 0 < found["ettr"] < found["goodput"] < 1
    assert found["image"], "the digest that the node pulled"
    assert asked("status", JOB)["goodput"]["ettr"] == pytest.approx(found["ettr"], abs=0.1)


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
