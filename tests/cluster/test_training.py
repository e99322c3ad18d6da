"""A cell trains on two real nodes as on this machine, and continues exactly after each fault of a cluster."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster.conftest import Nodes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.nodes import TRAINER, Node
from tests.cluster.recovery import Recovery, watch
from tests.cluster.training import (
    JOB,
    SHORT,
    STEPS,
    Training,
    changed,
    short,
    start,
    trained_here,
)
from tests.parts.gomodule import Progress
from tools.cells.knobs import Knobs, applied
from tools.core import repo
from tools.kube.manifests import parse, written

CELL = "overlays/cpu/llama-tiny"
RESUME_SECONDS = 20
DEFAULT_SECONDS = 30  # what torchrun's defaults take at least
COMMITTED_STEPS = int(SHORT["train.steps"][0])
FAULT, SECOND_FAULT = 23, 43  # steps a little behind a checkpoint each
NODES_EVERY = 5
ON_NODES = (
    *(f"{key}={new}" for key, (_, new) in SHORT.items()),
    "checkpoint.every=50",
    f"checkpoint.tiers.local.every={NODES_EVERY}",
    "checkpoint.tiers.local.path=/local",
)
CURVE = 0.05  # of loss: what rounding may add up to in a run
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
    """A function that creates namespaces that enforce `restricted`. All of them end with the test."""
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
    """The shorter run with which every fault is compared."""
    kube.make_namespace("t-undisturbed", enforce="restricted")
    training = start(kube, "t-undisturbed", short(rendered[CELL]))
    training.wait_end()
    assert sorted(training.losses()) == list(range(1, STEPS + 1))
    yield training
    kube.delete_namespace("t-undisturbed")


@pytest.fixture
def begin(
    kube: Kube, nodes: Nodes, rendered: dict[str, str], undisturbed: Training, team: Team
) -> Callable[[], Training]:
    """A function that starts the shorter run and returns it some steps after its first checkpoint."""

    def started() -> Training:
        training = start(kube, team(), short(rendered[CELL]), undisturbed.volume)
        training.wait_step(FAULT)
        return training

    return started


@pytest.fixture
def running(begin: Callable[[], Training]) -> Training:
    """The shorter run, training."""
    return begin()


def assert_like(training: Training, undisturbed: Training) -> None:
    """Wait for the end, and compare losses and tensors with the undisturbed run, bit for bit."""
    training.wait_end()
    assert_equal(training, undisturbed)


def assert_equal(one: Training, other: Training) -> None:
    """Compare losses and tensors of two runs, bit for bit."""
    assert one.losses() == other.losses()
    assert one.weights() == other.weights()


def test_a_cell_trains_on_two_nodes_as_yard_run_does(
    nodes: Nodes, undisturbed: Training, say: Progress, tmp_path: Path
) -> None:
    """The image pulled, rendezvous by Service DNS, checkpoints on the claim, this machine's own curve."""
    assert all(TRAINER in node.pulled() for node in nodes.nodes)
    say(f"training the same cell with yard run for {STEPS} steps")
    settings = [f"--set={key}={new}" for key, (_, new) in SHORT.items()]
    assert_equal(undisturbed, trained_here(undisturbed, CELL, tmp_path, *settings))


@pytest.mark.cluster_all
def test_the_committed_cell_trains_all_its_steps(
    kube: Kube, nodes: Nodes, team: Team, say: Progress, tmp_path: Path
) -> None:
    """`kubectl apply --server-side -k` of the cell as it is in git, compiled, on all its data."""
    prepared = repo.root() / "local" if (repo.root() / "local/data").is_dir() else None
    training = start(kube, team(), Path(CELL), prepared)
    training.wait_step(1)
    placed = {training.pod(index)["spec"]["nodeName"] for index in (0, 1)}
    assert placed == {node.name for node in nodes.nodes}
    training.wait_end()
    assert sorted(training.losses()) == list(range(1, COMMITTED_STEPS + 1))
    say(f"training the same cell with yard run for {COMMITTED_STEPS} steps")
    assert_equal(training, trained_here(training, CELL, tmp_path))


def test_training_goes_on_after_a_deleted_pod_and_then_a_killed_container(
    begin: Callable[[], Training],
    undisturbed: Training,
    nodes: Nodes,
    say: Progress,
    alone: AbstractContextManager[None],
) -> None:
    """Two faults in one run, a checkpoint between them; the end is the undisturbed run's, bit for bit.

    After the first, the next step comes within 20 s. On a machine so busy that a start alone takes about as
    long, it is held against this run's own start, for a pod ends before another one starts: one start and a
    half. The second is in the pod that holds the rendezvous: the other's launcher loses it, and starts again
    too.
    """
    with alone:
        running = begin()
        began = running.metrics()[0]["time"] - running.created()
        recovery = _delete(running, 1)
    say(f"deleted pod, seconds since: {recovery}; the job's own start took {began:.1f}")
    running.wait_step(SECOND_FAULT)
    assert running.last_step() < STEPS, "the run was over before the second fault"
    pod = running.pod(0)
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    restarts, at = running.restarts(0), time.time()
    nodes.of(pod).kill_container(container)
    killed = watch(running, at, lambda: running.restarts(0) > restarts)
    say(f"killed container, seconds since: {killed}")
    assert running.uid(0) == pod["metadata"]["uid"]
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
    training.wait_step(FAULT)
    recovery = _delete(training, 1)
    say(f"deleted pod with torchrun's defaults, seconds since: {recovery}")
    assert recovery.step >= DEFAULT_SECONDS


@pytest.mark.cluster_all
def test_operator_and_api_server_may_restart(
    running: Training, undisturbed: Training, control_plane: ControlPlane
) -> None:
    """The run does not notice: the same pods, without a restart."""
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
    _drain(running, name)
    running.kube.wait("another pod", lambda: running.uid(1) not in (None, before), 120)
    running.kube.wait("a pod that waits", lambda: _phase(running, 1) == "Pending", 60)
    assert running.last_step() < STEPS
    running.kube.run("uncordon", name)
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_a_lost_node_is_replaced(running: Training, undisturbed: Training, nodes: Nodes, kube: Kube) -> None:
    """The node hangs, then it is gone. Its Node object is removed, and later a new one joins."""
    node = nodes.of(running.pod(1))
    _lose(running, node)
    assert running.last_step() < STEPS
    assert _phase(running, 1) == "Pending"
    node.restart()
    assert_like(running, undisturbed)


@pytest.mark.cluster_all
def test_checkpoints_of_a_lost_node_come_from_their_copies(
    kube: Kube, nodes: Nodes, rendered: dict[str, str], undisturbed: Training, team: Team
) -> None:
    """The volume has no step yet, and the new pod's own directory is empty: at most one interval is lost."""
    knobs = Knobs(features=("local-checkpoints",), settings=ON_NODES)
    cell = applied(parse(rendered[CELL], CELL), knobs)
    training = start(kube, team(), written(cell.objects), undisturbed.volume)
    training.wait_step(FAULT)
    node = nodes.of(training.pod(1))
    _lose(training, node)
    last, since = training.last_step(), time.time()
    assert list((training.run / "checkpoints").glob("step-*")) == []
    node.restart()
    training.wait_end()
    first = min(line["step"] for line in training.metrics() if line["time"] > since)
    assert 0 <= last - (first - 1) <= NODES_EVERY
    assert_equal(training, undisturbed)


@pytest.mark.cluster_all
def test_an_elastic_job_continues_beside_a_drained_node_and_grows_again(
    kube: Kube,
    nodes: Nodes,
    rendered: dict[str, str],
    undisturbed: Training,
    team: Team,
    say: Progress,
    tmp_path: Path,
) -> None:
    """A step reads the same samples whatever the number of ranks: the curves differ by rounding only."""
    elastic = changed(short(rendered[CELL], 3 * STEPS), {"minReplicas: 2": "minReplicas: 1"})
    training = start(kube, team(), elastic, undisturbed.volume)
    training.wait_step(FAULT)
    node, at = training.pod(1)["spec"]["nodeName"], time.time()
    try:
        _drain(training, node)
        kube.wait("steps of one rank", lambda: _ranks(training)[-1] == 1, 300)
        alone = next(line["time"] for line in training.metrics() if len(line.get("rank_step_s", ())) == 1)
        say(f"the first step of one rank came {alone - at:.0f} s after the drain began")
        training.wait_step(training.last_step() + 5)
        assert _phase(training, 1) == "Pending"
    finally:
        kube.run("uncordon", node)
    kube.wait("steps of two ranks", lambda: _ranks(training)[-1] == 2, 300)
    training.wait_end()
    assert [count for count, _ in itertools.groupby(_ranks(training))] == [2, 1, 2]
    losses = training.losses()
    assert sorted(losses) == list(range(1, 3 * STEPS + 1))
    settings = [f"--set={key}={new}" for key, (_, new) in SHORT.items()]
    whole = trained_here(training, CELL, tmp_path, *settings, f"--set=train.steps={3 * STEPS}").losses()
    apart = {step: abs(loss - whole[step]) for step, loss in losses.items()}
    say(f"furthest from the undisturbed curve: {max(apart.values()):.4f}")
    assert max(apart.values()) < CURVE


def _ranks(training: Training) -> list[int]:
    """Return the number of ranks of each step."""
    return [len(line["rank_step_s"]) for line in training.metrics() if "rank_step_s" in line]


def _delete(training: Training, index: int) -> Recovery:
    """Delete a worker's pod and watch training continue."""
    before, at = training.uid(index), time.time()
    training.kube.run("delete", "pod", f"{JOB}-worker-{index}", "-n", training.namespace, "--wait=false")
    return watch(training, at, lambda: training.uid(index) not in (None, before))


def _lose(training: Training, node: Node) -> None:
    """Let the node of worker 1 hang, and then be gone with its Node object, until another pod waits for a node."""
    kube, before = training.kube, training.uid(1)
    node.freeze()
    kube.wait("the node to be missed", lambda: not node.is_ready(), 120)
    node.kill()
    kube.run("delete", "node", node.name)
    kube.wait("another pod", lambda: training.uid(1) not in (None, before), 300)


def _drain(training: Training, node: str) -> None:
    """Cordon a node and evict the job's pods from it."""
    selector = f"--pod-selector=training.kubeflow.org/job-name={JOB}"
    training.kube.run("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", selector, timeout=240)


def _phase(training: Training, index: int) -> str:
    return str((training.pod(index).get("status") or {}).get("phase", ""))


def _suspend(training: Training, suspended: bool) -> None:
    patch = json.dumps({"spec": {"runPolicy": {"suspend": suspended}}})
    training.kube.run("patch", "pytorchjob", JOB, "-n", training.namespace, "--type=merge", "-p", patch)
