"""`yard job submit`, `status`, `list` and `stop` on a real API server with the real operator.

kwok plays the kubelets: a pod is Running at once and writes no log, so the last checkpoint is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.kube import Kube, shared_claim
from tests.cluster.machines import fake_node
from tools.cli import invoke
from tools.facts.instances import instance

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
def team(kube: Kube, namespace: str, machines: None, asked: None) -> Iterator[str]:
    """A namespace with the claim, with `yard` configured for this cluster."""
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


def test_nothing_is_applied_that_lacks_something(
    kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.run("delete", "pvc", "trainyard", f"--namespace={team}")
    assert invoke(["job", "submit", CELL, "-n", team]) == 1
    assert f"namespace {team} lacks persistentvolumeclaim trainyard" in capsys.readouterr().err
    assert uid(kube, team) is None
    assert kube.get("serviceaccount", JOB, team) is None, "not even the first object"
    assert invoke(["job", "submit", CELL, "-n", "no-such-team"]) == 2
    assert "no such namespace: no-such-team" in capsys.readouterr().err


def test_a_dry_run_applies_nothing(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["job", "submit", CELL, "-n", team, "--dry-run"]) == 0
    assert f"would be applied in namespace {team}" in capsys.readouterr().out
    assert uid(kube, team) is None


def test_from_submit_over_stop_to_resume_and_replace(
    kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["job", "submit", CELL, "-n", team, "--no-follow", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    first = uid(kube, team)
    assert {one["uid"] for one in said["objects"] if one["kind"] == "PyTorchJob"} == {first}
    assert all(one["uid"] for one in said["objects"])
    kube.wait(
        "two running pods", lambda: [p["status"]["phase"] for p in pods(kube, team)] == ["Running"] * 2, 60
    )

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
        "oom-host", "parallel.micro_batch_size 8 -> 4; the global batch stays",
    )  # fmt: skip
    kube.wait("the pods of the second try", lambda: len(pods(kube, team)) == 2, 60)
    (volume,) = [
        one["projected"]["sources"]
        for one in pods(kube, team)[0]["spec"]["volumes"]
        if one["name"] == "config"
    ]
    (name,) = [one["configMap"]["name"] for one in volume if one["configMap"]["name"].endswith("-retry1")]
    data = (kube.get("configmap", name, team) or {})["data"]
    assert any("micro_batch_size: 4" in text for text in data.values())

    kube.wait("two running pods", running, 60)
    crash(kube, team, 78)
    assert invoke(["job", "retry", "-n", team]) == 1
    assert "another attempt would fail in the same way: config" in capsys.readouterr().err
    assert uid(kube, team) == second, "nothing was changed"


def test_following_ends_at_the_first_cause_of_delay(
    kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
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
