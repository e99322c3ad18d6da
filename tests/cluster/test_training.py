"""A cell trains on two real nodes as on this machine, and goes on exactly when a pod is taken away."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster.build import Progress
from tests.cluster.conftest import Nodes
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
    """The next step comes within 20 s, where torchrun's defaults have taken about 70.

    On a machine so busy that a start alone takes longer, it is held against this run's own start.
    """
    began = _seconds_to_the_first_step(running)
    before = running.pod(1)["metadata"]["uid"]
    at = time.time()
    running.kube.run("delete", "pod", f"{JOB}-worker-1", "-n", running.namespace, "--wait=false")
    gone = running.kube.wait("the pod to be another", lambda: _uid(running, 1) not in (None, before), 120)
    seconds = _first_step_behind(running, at + gone) - at  # the first pod of the name was gone by then
    say(f"deleted pod: another after {gone:.1f} s, the next step after {seconds:.1f} s")
    assert_like(running, undisturbed)
    assert seconds <= max(RESUME_SECONDS, 1.5 * began)


def _free_port() -> int:
    """Return a port that nobody has, for another run may be at the usual one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _uid(training: Training, index: int) -> str | None:
    return (training.pod(index).get("metadata") or {}).get("uid")


def _seconds_to_the_first_step(training: Training) -> float:
    created = datetime.fromisoformat(training.pod(0)["metadata"]["creationTimestamp"])
    return float(training.metrics()[0]["time"] - created.timestamp())


def _first_step_behind(training: Training, at: float) -> float:
    """Wait for the first step that was done after `at` (seconds since 1970); return when that was."""
    times: list[float] = []

    def resumed() -> bool:
        times[:] = [line["time"] for line in training.metrics() if line["time"] > at]
        return bool(times)

    training.kube.wait("training to go on", resumed, 300)
    return min(times)
