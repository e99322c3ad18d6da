"""`yard job submit`, `show`, `status`, `list` and `stop` on a real API server with the real operator.

kwok plays the kubelets: a pod is Running at once and writes no log, so the last checkpoint is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cluster.kube import Kube, shared_claim
from tests.cluster.machines import fake_node
from tools.cells import knobs
from tools.cells.knobs import Knobs
from tools.cli import invoke
from tools.core import repo
from tools.facts.instances import instance
from tools.kube.manifests import Manifests, Object, parse

CELL = "overlays/cpu/llama-tiny"
JOB = "cpu-llama-tiny-train"


@pytest.fixture(scope="module")
def machines(kube: Kube, fake: None) -> Iterator[None]:
    """Two machines on which the cell's pods fit."""
    made = [fake_node(instance("m5.2xlarge"), f"submit-{number}") for number in range(2)]
    kube.put(made)
    yield
    kube.call("delete", "nodes", *(node["metadata"]["name"] for node in made), "--wait=false")


@pytest.fixture
def team(
    kube: Kube, namespace: str, machines: None, asked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A namespace with the claim, with `yard` configured for this cluster."""
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")
    kube.put(shared_claim(namespace), namespace)
    yield namespace
    kube.call("delete", "pytorchjobs", "--all", f"--namespace={namespace}", "--wait=false")
    kube.call("delete", "pv", f"{namespace}-trainyard", "--wait=false", "--ignore-not-found")


def uid(kube: Kube, namespace: str) -> str | None:
    """The job's UID, or None."""
    found = kube.get("pytorchjob", JOB, namespace)
    return None if found is None else str(found["metadata"]["uid"])


def pods(kube: Kube, namespace: str) -> list[dict[str, Any]]:
    return kube.list("pods", namespace, f"training.kubeflow.org/job-name={JOB}")


def test_nothing_is_applied_that_lacks_something(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    kube.run("delete", "pvc", "trainyard", f"--namespace={team}")
    assert invoke(["job", "submit", CELL, "-n", team]) == 1
    assert f"PersistentVolumeClaim trainyard is not in namespace {team}" in capsys.readouterr().err
    assert uid(kube, team) is None
    assert kube.get("serviceaccount", JOB, team) is None, "not even the first object"
    assert invoke(["job", "submit", CELL, "-n", "no-such-team"]) == 2
    assert "no such namespace: no-such-team" in capsys.readouterr().err


def test_a_dry_run_applies_nothing(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["job", "submit", CELL, "-n", team, "--dry-run"]) == 0
    assert f"would be applied in namespace {team}" in capsys.readouterr().out
    assert uid(kube, team) is None


def test_from_submit_over_stop_to_resume_and_replace(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["job", "submit", CELL, "-n", team, "--no-follow", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    first = uid(kube, team)
    assert {one["uid"] for one in said["objects"] if one["kind"] == "PyTorchJob"} == {first}
    assert all(one["uid"] for one in said["objects"])
    kube.wait("two running pods", lambda: [p["status"]["phase"] for p in pods(kube, team)] == ["Running"] * 2, 60)

    assert invoke(["job", "list", "-n", team, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["uid"] == first
    assert invoke(["job", "status", "-n", team, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert sorted(pod["node"] for pod in status["pods"])[0].startswith("submit-")
    assert "run directory" in status["not_seen"], "kwok has no exec, and the status says so"

    assert invoke(["job", "submit", CELL, "-n", team]) == 1
    assert f"a job {JOB} exists already (Running); nothing was changed" in capsys.readouterr().err
    assert invoke(["job", "submit", CELL, "-n", team, "--resume"]) == 1
    assert "not suspended: there is nothing to resume" in capsys.readouterr().err
    assert uid(kube, team) == first

    assert invoke(["job", "stop", JOB, "-n", team, "--json"]) == 3
    stopped = json.loads(capsys.readouterr().out)
    assert (stopped["result"], stopped["uid"], stopped["saved"]) == ("suspended", first, False)
    assert "CANNOT TELL" in stopped["evidence"]
    assert pods(kube, team) == []
    assert invoke(["job", "why", "-n", team, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cause"] == "suspended"

    assert invoke(["job", "submit", CELL, "-n", team, "--resume", "--no-follow"]) == 0
    assert f"PyTorchJob/{JOB} {first}" in capsys.readouterr().out
    kube.wait("pods after the resume", lambda: len(pods(kube, team)) == 2, 60)

    patch = json.dumps({"spec": {"runPolicy": {"backoffLimit": 1}}})
    kube.run("patch", "pytorchjob", JOB, f"--namespace={team}", "--type=merge", f"--patch={patch}")
    assert invoke(["job", "submit", CELL, "-n", team, "--replace", "--no-follow"]) == 0
    said_text = capsys.readouterr()
    assert "backoffLimit: 1" in said_text.err, "the difference is shown"
    assert uid(kube, team) not in (None, first)

    assert invoke(["job", "stop", JOB, "-n", team, "--delete"]) == 3
    assert f"deleted: {team}/{JOB}" in capsys.readouterr().out
    assert uid(kube, team) is None


def crash(kube: Kube, namespace: str, code: int) -> None:
    """Write what a kubelet reports for containers that exit with a code again and again."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}
    ended = {"terminated": {"exitCode": code, "reason": "Error"}}
    status = {"name": "pytorch", "image": "x", "imageID": "", "ready": False, "restartCount": 1}
    patch = {"status": {"containerStatuses": [status | {"state": waiting, "lastState": ended}]}}
    for pod in pods(kube, namespace):
        words = ("pod", pod["metadata"]["name"], f"--namespace={namespace}", "--subresource=status")
        kube.run("patch", *words, "--type=merge", "-p", json.dumps(patch))


def test_a_retry_changes_what_its_class_asks_for_and_keeps_a_ledger(
    kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["job", "submit", CELL, "-n", team, "--no-follow"]) == 0
    running = lambda: [p["status"]["phase"] for p in pods(kube, team)] == ["Running"] * 2  # noqa: E731
    kube.wait("two running pods", running, 60)
    first = uid(kube, team)
    assert invoke(["job", "retry", "-n", team]) == 1
    assert "has not failed" in capsys.readouterr().err

    crash(kube, team, 160)
    assert invoke(["job", "retry", "-n", team, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    second = uid(kube, team)
    assert second not in (None, first)
    assert {one["uid"] for one in said["objects"] if one["kind"] == "PyTorchJob"} == {second}
    assert (said["cause"], said["changed"]) == (
        "oom-host", "parallel.micro_batch_size 4 -> 2; the global batch stays",
    )  # fmt: skip
    kube.wait("the pods of the second try", lambda: len(pods(kube, team)) == 2, 60)
    (volume,) = [
        one["projected"]["sources"] for one in pods(kube, team)[0]["spec"]["volumes"] if one["name"] == "config"
    ]
    (name,) = [one["configMap"]["name"] for one in volume if one["configMap"]["name"].endswith("-retry1")]
    data = (kube.get("configmap", name, team) or {})["data"]
    assert any("micro_batch_size: 2" in text for text in data.values())

    kube.wait("two running pods", running, 60)
    crash(kube, team, 78)
    assert invoke(["job", "retry", "-n", team]) == 1
    assert "another attempt would fail in the same way: config" in capsys.readouterr().err
    assert uid(kube, team) == second, "nothing was changed"


def test_following_ends_at_the_first_cause_of_delay(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes are cordoned. `yard` computes what the scheduler does not say."""
    for number in range(2):
        kube.run("cordon", f"submit-{number}")
    try:
        assert invoke(["job", "submit", CELL, "-n", team, "--json"]) == 1
    finally:
        for number in range(2):
            kube.run("uncordon", f"submit-{number}")
    said = json.loads(capsys.readouterr().out)
    assert said["cause"].startswith("unschedulable/")
    assert said["objects"][0]["uid"]


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(str(one["kind"]), str(one["metadata"]["name"])): one for one in objects}


def show(team: str, job: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, Manifests]:
    """Return where `yard job show --manifest` found the manifest, and the manifest."""
    capsys.readouterr()
    assert invoke(["job", "show", job, "-n", team, "--manifest"]) == 0
    said = capsys.readouterr()
    return said.err, parse(said.out, "shown")


def test_what_was_submitted_is_kept_with_the_job(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("train.learning_rate=1e-3",)
    words = ["job", "submit", CELL, "--set", settings[0], "--name", "kept", "-n", team, "--no-follow"]
    assert invoke(words) == 0
    name = f"{JOB}-kept"
    where, shown = show(team, name, capsys)
    assert f"ConfigMap/{name}-submitted, as submitted" in where
    assert by_name(shown.objects) == by_name(knobs.rendered(CELL, None, Knobs(settings=settings, name="kept")).objects)
    assert invoke(["job", "show", name, "-n", team]) == 0
    assert f"yard job submit {CELL} --set {settings[0]} --name kept" in capsys.readouterr().out
    worker = (kube.get("pytorchjob", name, team) or {})["spec"]["pytorchReplicaSpecs"]["Worker"]
    volumes = worker["template"]["spec"]["volumes"]
    (sources,) = (one["projected"]["sources"] for one in volumes if one["name"] == "config")
    texts = [(kube.get("configmap", one["configMap"]["name"], team) or {})["data"] for one in sources]
    assert sum("learning_rate: 1e-3" in str(text) for text in texts) == 1

    kube.run("delete", "configmap", f"{name}-submitted", f"--namespace={team}")
    where, shown = show(team, name, capsys)
    assert f"the live PyTorchJob/{name}, without the fields of the cluster" in where
    assert "what was submitted was not kept" in where
    job = by_name(shown.objects)["PyTorchJob", name]
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    assert not {"uid", "managedFields", "resourceVersion"} & set(job["metadata"])

    assert invoke(["job", "submit", CELL, "--name", "kept", "-n", team, "--replace", "--no-follow"]) == 0
    where, shown = show(team, name, capsys)
    assert "as submitted" in where
    assert by_name(shown.objects) == by_name(knobs.rendered(CELL, None, Knobs(name="kept")).objects)
    kube.run("delete", "pytorchjob", name, f"--namespace={team}")
    kube.wait("the ConfigMap's end", lambda: not kube.get("configmap", f"{name}-submitted", team), 60)
    where, left = show(team, name, capsys)
    assert "as last submitted from here; the cluster has no such job" in where
    assert left.objects == shown.objects
    assert invoke(["job", "show", "never-was", "-n", team]) == 2


def test_a_sweep_is_jobs_side_by_side(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job", "submit", CELL, "-n", team, "--nodes", "1", "--sweep", "train.learning_rate=1e-3,2e-3"]
    names = [f"{JOB}-lr-1e-3", f"{JOB}-lr-2e-3"]
    jobs = lambda: [one["metadata"]["name"] for one in kube.list("pytorchjobs", team)]  # noqa: E731
    assert invoke([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines()[:2]] == [
        [name, f"train.learning_rate={rate}"] for name, rate in zip(names, ("1e-3", "2e-3"), strict=True)
    ]
    assert f"2 jobs would be applied in namespace {team}" in said
    assert jobs() == []
    assert invoke([*words[:-1], "train.learning_rate=1e-3,fast"]) == 2, "one bad point"
    assert jobs() == []

    assert invoke(words) == 0
    assert f"next: yard job plot {' '.join(names)}" in capsys.readouterr().out
    assert jobs() == names
    kube.wait(
        "a pod of each",
        lambda: all(kube.list("pods", team, f"training.kubeflow.org/job-name={name}") for name in names),
        60,
    )
    specs = [kube.list("pods", team, f"training.kubeflow.org/job-name={name}")[0]["spec"] for name in names]
    run = [one for one in specs[0]["containers"][0]["volumeMounts"] if one["mountPath"] == "/shared/run"]
    assert run[0]["subPathExpr"] == "runs/$(JOB_NAME)", "each job has its own run directory"
    mounted = [str([volume for volume in spec["volumes"] if volume["name"] == "config"]) for spec in specs]
    assert mounted[0] != mounted[1]

    capsys.readouterr()
    assert invoke([*words[:-1], "train.learning_rate=3e-3,2e-3"]) == 1, "one of them exists"
    assert f"a job {names[1]} exists already" in capsys.readouterr().err
    assert jobs() == names


def batch(name: str) -> Object:
    """An Indexed Job of torchrun, which no training operator makes pods for."""
    options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={name}-0.{name}:29400"]
    container: Object = {"name": "train", "image": "registry.example/train:1"}
    container |= {"resources": {"requests": {"cpu": "1"}}, "command": ["torchrun", *options, "train.py"]}
    pod = {"subdomain": name, "restartPolicy": "Never", "containers": [container]}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("way", ["file", "standard input", "directory"])
def test_a_manifest_of_another_kind_is_submitted(
    way: str,
    kube: Kube,
    team: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    service: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mine"}}
    service["spec"] = {"clusterIP": "None", "selector": {"job-name": "mine"}}
    path = tmp_path / "mine/job.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump_all([batch("mine"), service]), encoding="utf-8")
    (path.parent / "kustomization.yaml").write_text("resources: [job.yaml]\n", encoding="utf-8")
    target = {"file": ["-f", str(path)], "standard input": ["-f", "-"], "directory": [str(path.parent)]}[way]
    with path.open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        words = ["job", "submit", *target, "-n", team, "--nodes", "3", "--name", "b", "--no-follow"]
        assert invoke(words) == 0
    made = kube.get("job", "mine-b", team) or {}
    assert made["spec"]["completions"] == 3
    command = made["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[1:4] == ["--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=mine-b-0.mine-b:29400"]
    where, shown = show(team, "mine-b", capsys)
    assert "as submitted" in where
    assert ("Job", "mine-b") in by_name(shown.objects)
    kube.run("delete", "job", "mine-b", f"--namespace={team}", "--wait=false")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "give a cell, or a file with -f"),
        ([CELL, "-f", "job.yaml"], 2, "give a cell, or a file with -f"),
        (["-f", "/nowhere.yaml"], 2, "/nowhere.yaml: No such file"),
        ([CELL, "--name", "Big_One"], 2, "lower-case letters"),
        ([CELL, "--set", "train.learning_rat=1"], 2, "learning_rate"),
        ([CELL, "--nodes", "3"], 1, "preflight fails, nothing was applied"),
        ([CELL, "--resume", "--replace"], 2, "give one of them"),
    ],
)
def test_refusals_are_plain(
    words: list[str], code: int, message: str, kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["job", "submit", *words, "-n", team]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert kube.list("pytorchjobs", team) == []
