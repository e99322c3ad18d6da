"""A cell trains on two real nodes, and goes on exactly after every fault that a cluster knows."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.build import Progress
from tests.cluster.conftest import Nodes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.training import JOB, STEPS, Training, copy_of_the_tree, short, start

CELL = "overlays/cpu/llama-tiny"
RESUME_SECONDS = 20
REFERENCE_SECONDS = 1200


@pytest.fixture
def team(kube: Kube) -> Iterator[Callable[[], str]]:
    """A function that makes a namespace which enforces `restricted`; all of them end with the test."""
    made = []

    def make() -> str:
        made.append(f"t-{uuid.uuid4().hex[:8]}")
        kube.make_namespace(made[-1], enforce="restricted")
        return made[-1]

    yield make
    for name in made:
        kube.delete_namespace(name)


@pytest.fixture(scope="module")
def committed(kube: Kube, nodes: Nodes, rendered: dict[str, str]) -> Iterator[Training]:
    """The cell as it is committed, trained to its end."""
    kube.make_namespace("t-committed", enforce="restricted")
    training = start(kube, "t-committed", nodes.volumes, rendered[CELL])
    training.wait_step(1)
    placed = {training.pod(index)["spec"]["nodeName"] for index in (0, 1)}
    assert placed == {"node-1", "node-2"}
    training.wait_end()
    yield training
    kube.delete_namespace("t-committed")


@pytest.fixture(scope="module")
def undisturbed(kube: Kube, nodes: Nodes, rendered: dict[str, str]) -> Iterator[Training]:
    """The shorter run that every fault is held against."""
    kube.make_namespace("t-undisturbed", enforce="restricted")
    training = start(kube, "t-undisturbed", nodes.volumes, short(rendered[CELL]))
    training.wait_end()
    assert sorted(training.losses()) == list(range(1, STEPS + 1))
    yield training
    kube.delete_namespace("t-undisturbed")


@pytest.fixture
def running(
    kube: Kube, nodes: Nodes, rendered: dict[str, str], undisturbed: Training, team: Callable[[], str]
) -> Training:
    """The shorter run at work, some steps behind its second checkpoint."""
    training = start(kube, team(), nodes.volumes, short(rendered[CELL]), undisturbed.volume)
    training.wait_step(23)
    return training


def assert_like(training: Training, undisturbed: Training) -> None:
    """Wait for the end, and hold losses and tensors against the undisturbed run's, bit for bit."""
    training.wait_end()
    assert training.losses() == undisturbed.losses()
    assert training.weights() == undisturbed.weights()


def test_a_committed_cell_trains_on_two_nodes_as_yard_run_does(
    committed: Training, say: Progress, tmp_path: Path
) -> None:
    """Rendezvous by Service DNS, checkpoints on the shared claim, and the curve of this machine's own run."""
    root = copy_of_the_tree(tmp_path)
    say("training the same cell with yard run")
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", "run", CELL, "--port", str(_free_port())],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=REFERENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    local = Training(committed.kube, "", root / "local")
    assert len(committed.losses()) == 200
    assert committed.losses() == local.losses()
    assert committed.weights() == local.weights()


def test_a_deleted_pod_is_made_again_and_training_goes_on(
    running: Training, undisturbed: Training, say: Progress
) -> None:
    """The next step comes within 20 s; torchrun's defaults take about 70."""
    before = running.pod(1)["metadata"]["uid"]
    at = time.time()
    running.kube.run("delete", "pod", f"{JOB}-worker-1", "-n", running.namespace, "--wait=false")
    gone = running.kube.wait("the pod to be another", lambda: _uid(running, 1) not in (None, before), 120)
    seconds = _first_step_behind(running, at + gone) - at  # the first pod of the name was gone by then
    say(f"deleted pod: another after {gone:.1f} s, the next step after {seconds:.1f} s")
    assert_like(running, undisturbed)
    assert seconds <= RESUME_SECONDS


def test_a_killed_container_starts_again_in_its_pod(
    running: Training, undisturbed: Training, nodes: Nodes
) -> None:
    pod = running.pod(0)
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    node = next(one for one in nodes.nodes if one.name == pod["spec"]["nodeName"])
    node.kill_container(container)
    running.kube.wait("a restart", lambda: _restarts(running, 0) >= 1, 120)
    assert_like(running, undisturbed)
    assert running.pod(0)["metadata"]["uid"] == pod["metadata"]["uid"]


def test_operator_and_api_server_may_restart(
    running: Training, undisturbed: Training, control_plane: ControlPlane
) -> None:
    """Nothing of the run notices: the same pods, without a restart."""
    before = [_uid(running, index) for index in (0, 1)]
    control_plane.restart_operator()
    control_plane.restart_api_server()
    assert not running.succeeded(), "the run was over before the fault"
    assert_like(running, undisturbed)
    assert [_uid(running, index) for index in (0, 1)] == before
    assert [_restarts(running, index) for index in (0, 1)] == [0, 0]


def test_a_job_is_suspended_and_resumed(running: Training, undisturbed: Training) -> None:
    _suspend(running, True)
    running.kube.wait("no pods", lambda: not running.pod(0) and not running.pod(1), 180)
    stopped = running.last_step()
    assert stopped < STEPS
    _suspend(running, False)
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_a_drained_node_gives_its_pod_away(running: Training, undisturbed: Training) -> None:
    """The other node has no room: the pod waits until the first one is back."""
    name = running.pod(1)["spec"]["nodeName"]
    words = (
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        f"--pod-selector=training.kubeflow.org/job-name={JOB}",
    )
    running.kube.run("drain", name, *words, timeout=240)
    running.kube.wait(
        "a pod that waits", lambda: running.pod(1).get("status", {}).get("phase") == "Pending", 60
    )
    assert not running.succeeded()
    running.kube.run("uncordon", name)
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_a_lost_node_is_replaced(running: Training, undisturbed: Training, nodes: Nodes, kube: Kube) -> None:
    """It hangs, then it is gone; whoever runs the machines removes its Node, and another one comes."""
    name = running.pod(1)["spec"]["nodeName"]
    node = next(one for one in nodes.nodes if one.name == name)
    node.freeze()
    kube.wait("the node to be missed", lambda: not node.is_ready(), 120)
    node.kill()
    kube.run("delete", "node", name)
    node.restart()
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_an_elastic_job_goes_on_with_one_pod_and_then_with_two_again(
    kube: Kube, nodes: Nodes, rendered: dict[str, str], undisturbed: Training, team: Callable[[], str]
) -> None:
    """A step reads the same samples whatever the number of ranks: the same curve but for rounding."""
    elastic = short(rendered[CELL]).replace("minReplicas: 2", "minReplicas: 1")
    training = start(kube, team(), nodes.volumes, elastic, undisturbed.volume)
    training.wait_step(23)
    node = training.pod(1)["spec"]["nodeName"]
    kube.run("cordon", node)
    kube.run("delete", "pod", f"{JOB}-worker-1", "-n", training.namespace)
    alone = training.last_step()
    training.wait_step(alone + 5)
    assert training.pod(1)["status"]["phase"] == "Pending"
    assert not training.succeeded(), "the run was over before the second pod came back"
    kube.run("uncordon", node)
    training.kube.wait("two pods", lambda: training.pod(1)["status"]["phase"] == "Running", 120)
    training.wait_end()
    expected = undisturbed.losses()
    assert training.losses().keys() == expected.keys()
    assert all(abs(loss - expected[step]) < 0.05 for step, loss in training.losses().items())
    ranks = [len(line["rank_step_s"]) for line in training.metrics()]
    assert [count for count, _ in itertools.groupby(ranks)] == [2, 1, 2]


def _free_port() -> int:
    """Return a port that nobody has, for another run may be at the usual one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _uid(training: Training, index: int) -> str | None:
    return (training.pod(index).get("metadata") or {}).get("uid")


def _restarts(training: Training, index: int) -> int:
    statuses = training.pod(index).get("status", {}).get("containerStatuses") or []
    return sum(status["restartCount"] for status in statuses)


def _suspend(training: Training, suspended: bool) -> None:
    patch = f'{{"spec": {{"runPolicy": {{"suspend": {str(suspended).lower()}}}}}}}'
    training.kube.run("patch", "pytorchjob", JOB, "-n", training.namespace, "--type=merge", "-p", patch)


def _first_step_behind(training: Training, at: float) -> float:
    """Wait for the first step that was done after `at` (seconds since 1970); return when that was."""
    times: list[float] = []

    def resumed() -> bool:
        times[:] = [line["time"] for line in training.metrics() if line["time"] > at]
        return bool(times)

    training.kube.wait("training to go on", resumed, 300)
    return min(times)
