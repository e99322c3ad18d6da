"""A cell trains on two real nodes as on this machine, and goes on exactly after each fault of a cluster."""

from __future__ import annotations

import json
import shutil
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
from tests.cluster.nodes import TRAINER
from tests.cluster.recovery import Recovery, watch
from tests.cluster.training import (
    JOB,
    STEPS,
    Training,
    changed,
    copy_data,
    copy_of_the_tree,
    short,
    start,
)
from tools import repo
from tools.job.collect import collect
from tools.job.why import explain
from tools.kubectl import Kubectl

CELL = "overlays/cpu/llama-tiny"
RESUME_SECONDS = 20
DEFAULT_SECONDS = 30  # what torchrun's defaults take at least
REFERENCE_SECONDS = 1800
FAST_STEPS, ALL_STEPS = 30, 200
# The launcher itself as process 1, with its own settings.
OURS = "- training.entrypoint\n            - torchrun"
DEFAULTS = {
    OURS: "- torch.distributed.run",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "NOT_TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "PET_SHUTDOWN_TIMEOUT": "NOT_PET_SHUTDOWN_TIMEOUT",
}
Team = Callable[[], str]


@pytest.fixture
def team(kube: Kube) -> Iterator[Team]:
    """A function that makes a namespace which enforces `restricted`; all of them end with the test."""
    made = []

    def make() -> str:
        made.append(f"t-{uuid.uuid4().hex[:8]}")
        kube.make_namespace(made[-1], enforce="restricted")
        return made[-1]

    yield make
    for name in made:
        kube.call("delete", "pytorchjobs", "--all", f"--namespace={name}", "--wait=false")
        kube.delete_namespace(name)


@pytest.fixture(scope="module")
def undisturbed(kube: Kube, nodes: Nodes, rendered: dict[str, str]) -> Iterator[Training]:
    """The shorter run that every fault is held against."""
    kube.make_namespace("t-undisturbed", enforce="restricted")
    training = start(kube, "t-undisturbed", short(rendered[CELL]))
    training.wait_end()
    assert sorted(training.losses()) == list(range(1, STEPS + 1))
    yield training
    kube.delete_namespace("t-undisturbed")


@pytest.fixture
def running(
    kube: Kube, nodes: Nodes, rendered: dict[str, str], undisturbed: Training, team: Team
) -> Training:
    """The shorter run at work, some steps behind its first checkpoint."""
    training = start(kube, team(), short(rendered[CELL]), undisturbed.volume)
    training.wait_step(23)
    return training


def assert_like(training: Training, undisturbed: Training) -> None:
    """Wait for the end, and hold losses and tensors against the undisturbed run's, bit for bit."""
    training.wait_end()
    assert training.losses() == undisturbed.losses()
    assert training.weights() == undisturbed.weights()


@pytest.mark.parametrize("steps", [FAST_STEPS, pytest.param(ALL_STEPS, marks=pytest.mark.cluster_all)])
def test_a_committed_cell_trains_on_two_nodes_as_yard_run_does(
    kube: Kube,
    nodes: Nodes,
    rendered: dict[str, str],
    team: Team,
    say: Progress,
    tmp_path: Path,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image pulled, rendezvous by Service DNS, checkpoints on the claim, this machine's own curve.

    While it trains, one more pod than fits waits, and `yard job why` says for what.
    """
    manifest = rendered[CELL] if steps == ALL_STEPS else changed(rendered[CELL], _steps(steps))
    prepared = repo.root() / "local" if (repo.root() / "local/data").is_dir() else None
    training = start(kube, team(), manifest, prepared)
    training.wait_step(1)
    placed = {training.pod(index)["spec"]["nodeName"] for index in (0, 1)}
    assert placed == {node.name for node in nodes.nodes}
    assert all(TRAINER in node.pulled() for node in nodes.nodes)

    second = start(kube, team(), manifest, prepared)
    kube.wait("a pod that waits", lambda: _phase(second, 1) == "Pending", 60)
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, kube.environment[name])
    kube.wait("why it waits", lambda: _why(second) == "unschedulable/cpu", 60)
    kube.run("delete", "pytorchjob", JOB, "-n", second.namespace)

    training.wait_end()
    root = copy_of_the_tree(tmp_path)
    copy_data(training.volume, root / "local")
    local = Training(kube, "", root / "local")
    shutil.copytree(training.run / "cache", local.run / "cache")  # compiled once
    say(f"training the same cell with yard run for {steps} steps")
    words = ["run", CELL, "--port", str(_free_port()), "--set", f"train.steps={steps}"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *words],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=REFERENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sorted(training.losses()) == list(range(1, steps + 1))
    assert training.losses() == local.losses()
    assert training.weights() == local.weights()


def test_a_deleted_pod_is_made_again_and_training_goes_on(
    running: Training, undisturbed: Training, say: Progress
) -> None:
    """The next step comes within 20 s.

    On a machine so busy that a start alone takes about as long, it is held against this run's own start, for
    a pod ends before another one starts: one start and a half.
    """
    began = running.metrics()[0]["time"] - running.created()
    recovery = _delete(running, 1)
    say(f"deleted pod, seconds since: {recovery}; the job's own start took {began:.1f}")
    assert_like(running, undisturbed)
    assert recovery.step <= max(RESUME_SECONDS, 1.5 * began)


@pytest.mark.cluster_all
def test_control_torchruns_defaults_take_much_longer(
    kube: Kube, nodes: Nodes, rendered: dict[str, str], undisturbed: Training, team: Team, say: Progress
) -> None:
    """The same pod deleted from the same job, without our entrypoint and settings.

    The launchers share one store then: the one that stays has announced its address once and for all, the new
    one waits for it in the store of the new round, and both give up after 60 s.
    """
    training = start(kube, team(), changed(short(rendered[CELL]), DEFAULTS), undisturbed.volume)
    training.wait_step(23)
    recovery = _delete(training, 1)
    say(f"deleted pod with torchrun's defaults, seconds since: {recovery}")
    assert recovery.step >= DEFAULT_SECONDS


def test_a_killed_container_starts_again_in_its_pod(
    running: Training, undisturbed: Training, nodes: Nodes, say: Progress
) -> None:
    """Of the pod that holds the rendezvous: the other's launcher loses it, and starts again too."""
    pod = running.pod(0)
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    at = time.time()
    nodes.of(pod).kill_container(container)
    recovery = watch(running, at, lambda: running.restarts(0) >= 1)
    say(f"killed container, seconds since: {recovery}")
    assert running.uid(0) == pod["metadata"]["uid"]
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_operator_and_api_server_may_restart(
    running: Training, undisturbed: Training, control_plane: ControlPlane
) -> None:
    """Nothing of the run notices: the same pods, without a restart."""
    before = [running.uid(index) for index in (0, 1)]
    killed = {name: control_plane.process(name).pid for name in ("training-operator", "kube-apiserver")}
    control_plane.restart_operator()
    control_plane.restart_api_server()
    assert running.last_step() < STEPS, "the run was over before the fault"
    assert all(control_plane.process(name).pid != pid for name, pid in killed.items())
    running.wait_step(running.last_step() + 5)
    assert [running.uid(index) for index in (0, 1)] == before
    assert [running.restarts(index) for index in (0, 1)] == [0, 0]
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_a_job_is_suspended_and_resumed(running: Training, undisturbed: Training) -> None:
    _suspend(running, True)
    running.kube.wait("no pods", lambda: not running.pod(0) and not running.pod(1), 180)
    assert running.last_step() < STEPS
    _suspend(running, False)
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_a_drained_node_gives_its_pod_away(running: Training, undisturbed: Training) -> None:
    """The other node has no room: the pod waits until the first one is back."""
    name, before = running.pod(1)["spec"]["nodeName"], running.uid(1)
    selector = f"--pod-selector=training.kubeflow.org/job-name={JOB}"
    running.kube.run("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", selector, timeout=240)
    running.kube.wait("another pod", lambda: running.uid(1) not in (None, before), 120)
    running.kube.wait("a pod that waits", lambda: _phase(running, 1) == "Pending", 60)
    assert running.last_step() < STEPS
    running.kube.run("uncordon", name)
    assert_like(running, undisturbed)


def _steps(count: int) -> dict[str, str]:
    return {"steps: 200": f"steps: {count}"}


def _delete(training: Training, index: int) -> Recovery:
    """Delete a worker's pod, and see training go on."""
    before, at = training.uid(index), time.time()
    training.kube.run("delete", "pod", f"{JOB}-worker-{index}", "-n", training.namespace, "--wait=false")
    return watch(training, at, lambda: training.uid(index) not in (None, before))


def _phase(training: Training, index: int) -> str:
    return str((training.pod(index).get("status") or {}).get("phase", ""))


def _why(training: Training) -> str:
    """Return the first cause that `yard job why` names."""
    causes = explain(collect(Kubectl(None, training.namespace), JOB)).causes
    return causes[0].kind if causes else ""


def _suspend(training: Training, suspended: bool) -> None:
    patch = json.dumps({"spec": {"runPolicy": {"suspend": suspended}}})
    training.kube.run("patch", "pytorchjob", JOB, "-n", training.namespace, "--type=merge", "-p", patch)


def _free_port() -> int:
    """Return a port that nobody has, for another run may be at the usual one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
