"""TrainJobs and queues on the real controllers of Trainer, JobSet and Kueue, with a cluster of their own."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster import build, controllers
from tests.cluster.api import Object
from tests.cluster.conftest import Nodes, own_plane, real_nodes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube, condition, shared_claim
from tests.cluster.machines import fake_node
from tests.cluster.sandbox import BRIDGE_ADDRESS, CannotStart
from tests.cluster.training import JOB, SHORT, STEPS, TRAINJOB_LABEL, Training, start
from tests.parts import venv
from tests.parts.gomodule import Progress
from tools.cells import kustomize
from tools.cells.knobs import Knobs, applied
from tools.cli import invoke
from tools.cluster import platform
from tools.cluster.cluster_env import Fact
from tools.core import repo
from tools.facts.instances import instance
from tools.job.submit import RUNTIME_UNSEEN
from tools.kube.manifests import Manifests, name_of, parse, written
from tools.kube.selectors import ZONE
from tools.workload import kinds
from tools.workload.pod import Pod

CELL, SEEN = "overlays/cpu/llama-tiny", "overlays/g5/llama-3-2-1b"
LARGE = "overlays/p5/llama-3-1-8b"  # four machines
SDK = repo.root() / "tests/cluster/kubeflow"
FAULTS = (23, 43, 63)  # steps a little behind a checkpoint each
SETTINGS = tuple(f"{key}={new}" for key, (_, new) in SHORT.items())
KUEUE = "base/plugins/kueue"
BY_INDEX = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX")  # the pod reads them from its annotation
STATUS = "KUBEFLOW_TRAINER_SERVER"
SEND = """
from training.run.trainer_status import TrainerStatus
said = []
sender = TrainerStatus(said.append)
sender.send(30, 120, 45.0, {"loss": 2.5})
sender.close()
raise SystemExit(said[0] if said else 0)
"""
LABEL, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"

pytestmark = pytest.mark.cluster_all


@pytest.fixture(scope="module")
def control_plane(say: Progress) -> Iterator[ControlPlane]:
    with own_plane(say, (*build.CLUSTER, "controllers")) as plane:
        plane.start()
        controllers.start(plane, controllers.JOBSET, controllers.TRAINER, controllers.KUEUE)
        say(f"three more controllers answer {plane.age:.0f} s after the cluster was begun")
        yield plane


@pytest.fixture(scope="module")
def kube(control_plane: ControlPlane) -> Kube:
    return control_plane.kube


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane, say: Progress) -> Nodes:
    return real_nodes(control_plane, say)


@pytest.fixture(scope="module")
def made(cells: list[Manifests]) -> Callable[..., list[Object]]:
    """A function from features to the objects of the small cell, in smaller steps."""
    (cell,) = (one for one in cells if one.source == CELL)
    return lambda *features: applied(cell, Knobs(features=features, settings=SETTINGS)).objects


@pytest.fixture
def team(kube: Kube) -> Iterator[Callable[[], str]]:
    """A function that creates namespaces that enforce `restricted`. All of them end with the test."""
    names: list[str] = []

    def make() -> str:
        names.append(f"t-{uuid.uuid4().hex[:8]}")
        kube.make_namespace(names[-1], enforce="restricted")
        return names[-1]

    yield make
    for name in names:
        for kind in ("pytorchjobs", "trainjobs"):
            kube.call("delete", kind, "--all", f"--namespace={name}", "--timeout=60s")
        kube.delete_namespace(name)
        kube.call("delete", "clusterqueue", f"trainyard-{name}", "--ignore-not-found", "--timeout=60s")


@pytest.fixture
def yard(asked: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A function that runs `yard job ... --json` and returns its answer."""

    def run(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert invoke(["job", *words, "--json"]) == code, capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    return run


def test_every_cell_becomes_pods_as_a_trainjob(
    kube: Kube, control_plane: ControlPlane, cells: list[Manifests], team: Callable[[], str]
) -> None:
    """All are admitted, and Trainer, JobSet and the Job controller make the pods that `yard` computes.

    Kubeflow's SDK shows the same pods. It reads only runtimes whose limits name GPUs or processors.
    """
    namespace = team()
    kube.put(shared_claim(namespace), namespace)
    wanted: dict[tuple[str, str], Pod] = {}
    for cell in cells:
        manifests = applied(cell, Knobs(features=("trainjob",)))
        _apply(kube, namespace, manifests.objects)
        wanted |= {(pod.name, cell.source): pod for pod in kinds.job_of(manifests).pods()}

    def real() -> list[Object]:
        return kube.list("pods", namespace, TRAINJOB_LABEL)

    kube.wait(f"{len(wanted)} pods", lambda: len(real()) == len(wanted), 400)
    by_host = {pod["spec"]["hostname"]: pod for pod in real()}
    for (name, source), pod in wanted.items():
        found = by_host[pod.spec.get("hostname") or name]
        assert found["metadata"]["labels"].items() >= pod.labels.items(), source
        assert _environment(found) == _environment({"spec": pod.spec}), source
        assert found["spec"]["restartPolicy"] == "Never"
    if venv.ensure(SDK / "requirements.lock") == 0:
        job = f"{SEEN.removeprefix('overlays/').replace('/', '-')}-train"
        words = [str(venv.python(SDK / "requirements.lock")), str(SDK / "client.py"), "job"]
        told = control_plane.sandbox.call_outside(*words, str(kube.kubeconfig), namespace, job)
        names = {one["metadata"]["name"] for one in real() if one["metadata"]["labels"][TRAINJOB_LABEL] == job}
        assert set(json.loads(told)["steps"].values()) == names
        assert json.loads(told)["framework"] == "torch"
    kube.call("delete", "trainjobs", "--all", f"--namespace={namespace}", "--timeout=120s")


def _apply(kube: Kube, namespace: str, objects: list[Object]) -> None:
    """Apply a TrainJob with its runtime, again where a webhook has not seen the runtime yet."""

    def admitted() -> bool:
        done = kube.call("apply", "--server-side", f"--namespace={namespace}", "-f", "-", given=written(objects))
        assert done.code == 0 or RUNTIME_UNSEEN.search(done.err), done.err
        return done.code == 0

    kube.wait("admission", admitted, 60)


def _environment(pod: Object) -> dict[str, str]:
    container = next(one for one in pod["spec"]["containers"] if one["name"] == "node")
    env = {one["name"]: one["value"] for one in container["env"] if "value" in one and one["name"] not in BY_INDEX}
    return {name: value for name, value in env.items() if not name.startswith(STATUS)}


def test_progress_reaches_the_status_of_a_trainjob(
    kube: Kube, control_plane: ControlPlane, made: Callable[..., list[Object]], team: Callable[[], str], tmp_path: Path
) -> None:
    """Rank 0's sender, with the variables, the certificate and the token that Trainer gives its pod."""
    namespace = team()
    kube.put(shared_claim(namespace), namespace)
    _apply(kube, namespace, made("trainjob"))
    kube.wait("its pods", lambda: len(kube.list("pods", namespace, TRAINJOB_LABEL)) == 2, 120)
    spec = kube.list("pods", namespace, TRAINJOB_LABEL)[0]["spec"]
    env = {one["name"]: one["value"] for one in spec["containers"][0]["env"] if one["name"].startswith(STATUS)}
    volumes = [(volume.get("projected") or {}).get("sources") or [] for volume in spec["volumes"]]
    (sources,) = (found for found in volumes if any("audience" in one.get("serviceAccountToken", {}) for one in found))
    (asked,) = (one["serviceAccountToken"] for one in sources if "serviceAccountToken" in one)
    (trusted,) = (one["configMap"] for one in sources if "configMap" in one)
    texts = (kube.get("configmap", trusted["name"], namespace) or {})["data"]
    (tmp_path / "ca.crt").write_text(texts[trusted["items"][0]["key"]], encoding="utf-8")
    host = str(urlsplit(env[f"{STATUS}_URL"]).hostname)
    (tmp_path / "hosts").write_text(f"{BRIDGE_ADDRESS} {host}\n", encoding="utf-8")

    def send(audience: str) -> None:
        words = ("create", "token", spec["serviceAccountName"], "-n", namespace, f"--audience={audience}")
        (tmp_path / "token").write_text(kube.run(*words), encoding="utf-8")
        files = {f"{STATUS}_CA_CERT": tmp_path / "ca.crt", f"{STATUS}_TOKEN": tmp_path / "token"}
        given = [f"{name}={value}" for name, value in (env | files | {"PYTHONPATH": repo.root()}).items()]
        inside = ("unshare", "--mount", "sh", "-c", 'mount --bind "$1" /etc/hosts; shift; exec "$@"', "sh")
        program = ("env", *given, sys.executable, "-c", SEND)
        control_plane.sandbox.call_outside(*inside, str(tmp_path / "hosts"), *program)

    def status() -> Object | None:
        found: Object | None = (kube.get("trainjobs", JOB, namespace) or {}).get("status", {}).get("trainerStatus")
        return found

    with pytest.raises(CannotStart, match="HTTPError 403"):
        send("another")
    assert status() is None
    send(asked["audience"])
    kube.wait("the status", lambda: status() is not None, 60)
    found = status() or {}
    assert (found["progressPercentage"], found["estimatedRemainingSeconds"]) == (25, 45)
    assert found["metrics"] == [{"name": "loss", "value": "2.5"}]


@pytest.fixture(scope="module")
def undisturbed(kube: Kube, nodes: Nodes, made: Callable[..., list[Object]]) -> Iterator[Training]:
    """The PyTorchJob with which every run is compared."""
    kube.make_namespace("t-undisturbed", enforce="restricted")
    training = start(kube, "t-undisturbed", written(made()))
    training.wait_end()
    assert sorted(training.losses()) == list(range(1, STEPS + 1))
    yield training
    kube.delete_namespace("t-undisturbed")


def test_a_trainjob_trains_as_the_pytorchjob_through_three_faults(
    kube: Kube,
    undisturbed: Training,
    made: Callable[..., list[Object]],
    team: Callable[[], str],
    yard: Callable[..., Any],
) -> None:
    """A deleted pod, a suspension and a drained node; losses and weights are the PyTorchJob's, bit for bit."""
    namespace = team()
    training = start(kube, namespace, written(made("trainjob")), undisturbed.volume, "trainjob")
    training.wait_step(FAULTS[0])
    status = yard("status", "-n", namespace)
    assert (status["kind"], sorted(rank for pod in status["pods"] for rank in pod["ranks"])) == ("TrainJob", [0, 1])
    assert yard("why", "-n", namespace)["state"] == "healthy"
    before = training.uid(1)
    kube.run("delete", "pod", name_of(training.pod(1)), "-n", namespace, "--wait=false")
    kube.wait("another pod", lambda: training.uid(1) not in (None, before), 180)

    training.wait_step(FAULTS[1])
    stopped = yard("stop", JOB, "-n", namespace)
    assert (stopped["result"], stopped["saved"]) == ("suspended", True)
    assert kube.list("pods", namespace, TRAINJOB_LABEL) == []
    assert yard("why", "-n", namespace, code=1)["cause"] == "suspended"
    saved = training.last_step()
    _patch(kube, namespace, {"spec": {"suspend": False}})
    kube.wait("the pods again", lambda: training.uid(1) is not None, 180)

    training.wait_step(max(FAULTS[2], saved + 1))
    node, before = training.pod(1)["spec"]["nodeName"], training.uid(1)
    selector = f"--pod-selector={TRAINJOB_LABEL}={JOB}"
    kube.run("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", selector, timeout=240)
    try:
        kube.wait("another pod", lambda: training.uid(1) not in (None, before), 180)
        assert training.last_step() < STEPS, "the run was over before the last fault"
    finally:
        kube.run("uncordon", node)
    training.wait_end()
    assert training.losses() == undisturbed.losses()
    assert training.weights() == undisturbed.weights()


def _patch(kube: Kube, namespace: str, change: Object) -> None:
    kube.run("patch", "trainjob", JOB, "-n", namespace, "--type=merge", "-p", json.dumps(change))


def test_a_permanent_failure_ends_the_trainjob(
    kube: Kube,
    nodes: Nodes,
    made: Callable[..., list[Object]],
    team: Callable[[], str],
    yard: Callable[..., Any],
) -> None:
    """An unknown key of the configuration: exit code below 128, no pod after the first of each index."""
    namespace, objects = team(), made("trainjob")
    for one in objects:
        if one["kind"] == "ConfigMap" and "model.yaml" in one["data"]:
            one["data"]["model.yaml"] = one["data"]["model.yaml"].replace("learning_rate:", "lerning_rate:")
    training = start(kube, namespace, written(objects), kind="trainjob")
    kube.wait("the end", lambda: condition(training.job(), "Failed") is not None, 300)
    made_pods = [one for one in kube.list("events", namespace) if one["reason"] == "SuccessfulCreate"]
    assert len([one for one in made_pods if one["involvedObject"]["kind"] == "Job"]) <= 2
    answer = yard("why", "-n", namespace, code=1)
    assert answer["cause"].startswith("config"), answer


def queues(kube: Kube, namespace: str, cpus: int, memory: int = 64, gpus: int = 0, near: Path | None = None) -> None:
    """Apply the queue of base/plugins/kueue for a team; with its topology, built in the folder `near`, in a flavor."""
    values = {"TEAM_NAMESPACE": namespace, "QUEUE_CPUS": str(cpus), "QUEUE_MEMORY_GIB": str(memory)}
    values |= {"QUEUE_GPUS": str(gpus), "QUEUE_NEURON": "0"}
    folder = repo.root() / KUEUE / "queue"
    if near is not None:
        paths = {part: os.path.relpath(repo.root() / KUEUE / part, near) for part in ("queue", "topology")}
        build = {"resources": [paths["queue"]], "components": [paths["topology"]]}
        (near / "kustomization.yaml").write_text(json.dumps(build), encoding="utf-8")
        folder = near
    text = kustomize.ensure(repo.root(), print).build(folder)
    objects = parse(platform.substitute(text, {name: Fact(value, 0) for name, value in values.items()}), KUEUE).objects
    for one in objects if near else []:  # the flavor of other tests cannot change
        if one["kind"] == "ResourceFlavor":
            one["metadata"]["name"] = "near"
        elif one["kind"] == "ClusterQueue":
            one["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "near"
    kube.put(objects)

    def active() -> bool:
        return condition(kube.get("clusterqueue", f"trainyard-{namespace}") or {}, "Active") is not None

    kube.wait("the queue", active, 60)


def queued(objects: list[Object], name: str, priority: str | None = None) -> list[Object]:
    """Return a cell's objects with its job under another name, in the team's queue."""
    manifests = applied(Manifests("queued", objects), Knobs(name=name))
    job = kinds.job_of(manifests).item
    job["metadata"].setdefault("labels", {})[LABEL] = "trainyard"
    job["metadata"]["labels"] |= {PRIORITY: priority} if priority else {}
    return manifests.objects


def _workload(kube: Kube, namespace: str, job: str) -> Object:
    for one in kube.list("workloads.kueue.x-k8s.io", namespace):
        if job in {owner["name"] for owner in one["metadata"].get("ownerReferences") or []}:
            return one
    return {}


def test_a_job_waits_is_preempted_and_resumes_with_no_step_lost(
    kube: Kube,
    undisturbed: Training,
    made: Callable[..., list[Object]],
    team: Callable[[], str],
    yard: Callable[..., Any],
    say: Progress,
) -> None:
    """A PyTorchJob of low priority has the quota; a TrainJob of high priority takes it, and gives it back."""
    namespace = team()
    queues(kube, namespace, cpus=2)
    low = start(kube, namespace, written(queued(made(), "low", "trainyard-low")), undisturbed.volume)
    low = Training(kube, namespace, low.volume, name=f"{JOB}-low")
    low.wait_step(FAULTS[0])
    _apply(kube, namespace, queued(made("trainjob"), "same", "trainyard-low"))
    kube.wait("its Workload", lambda: bool(_workload(kube, namespace, f"{JOB}-same")), 60)
    waiting = _until(yard, namespace, f"{JOB}-same", "insufficient unused quota")
    assert waiting["cause"].startswith("queue"), waiting
    kube.run("delete", "trainjob", f"{JOB}-same", "-n", namespace)

    _apply(kube, namespace, queued(made("trainjob"), "high", "trainyard-high"))
    high = Training(kube, namespace, low.volume, name=f"{JOB}-high", kind="trainjob")
    evicted = _until(yard, namespace, f"{JOB}-low", "reempted")
    say(f"why of the preempted job: {json.dumps(evicted)[:600]}")
    kube.wait("a checkpoint of its last step", lambda: _saved(low) == low.last_step(), 120)
    drained = low.last_step()
    assert FAULTS[0] <= drained < STEPS
    high.wait_end()
    low.wait_end()
    assert low.losses() == undisturbed.losses() == high.losses()
    steps = [line["step"] for line in low.metrics() if "loss" in line]
    assert steps == list(range(1, STEPS + 1)), "no step was lost, and none was done twice"


def _saved(training: Training) -> int:
    names = [path.name for path in (training.run / "checkpoints").glob("step-????????")]
    return max((int(name.partition("-")[2]) for name in names), default=0)


def _until(yard: Callable[..., Any], namespace: str, job: str, words: str) -> Any:
    """Ask `why` until its evidence has these words, and return the answer."""
    for _ in range(120):
        answer = yard("why", job, "-n", namespace, code=1)
        if words in json.dumps(answer):
            return answer
    raise AssertionError(answer)


def test_teams_lend_and_take_back_and_a_job_that_never_gets_ready_is_evicted(
    kube: Kube,
    made: Callable[..., list[Object]],
    team: Callable[[], str],
    yard: Callable[..., Any],
    say: Progress,
) -> None:
    """Quotas of one processor each: a job of two borrows, the other team's of one takes its own back."""
    one, other = team(), team()
    for namespace in (one, other):
        queues(kube, namespace, cpus=1)
    borrower, owner = f"{JOB}-borrower", f"{JOB}-owner"
    _apply(kube, one, _nowhere(queued(made("trainjob"), "borrower")))
    kube.wait("the loan", lambda: bool(condition(_workload(kube, one, borrower), "Admitted")), 60)
    small = applied(Manifests("small", made()), Knobs(nodes=1)).objects
    kube.apply(written(_nowhere(queued(small, "owner"))), other)
    kube.wait("its own again", lambda: bool(condition(_workload(kube, other, owner), "Admitted")), 90)
    found = _until(yard, one, borrower, "reclamation")
    say(f"why of the borrower: {json.dumps(found)[:600]}")
    kube.wait("the eviction", lambda: bool(condition(_workload(kube, other, owner), "Evicted")), 300)
    late = _until(yard, other, owner, "waitForPodsReady")
    say(f"why of the late one: {json.dumps(late)[:600]}")
    reason = (condition(_workload(kube, other, owner), "Evicted") or {}).get("reason")
    assert reason == "PodsReadyTimeout"


def _nowhere(objects: list[Object]) -> list[Object]:
    """Let the job's pods fit no node, so that only Kueue decides."""
    for one in objects:
        if one["kind"] == "PyTorchJob":
            one["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] = {"no": "such"}
        if one["kind"] == "TrainingRuntime":
            (replicated,) = one["spec"]["template"]["spec"]["replicatedJobs"]
            replicated["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such"}
    return objects


def test_kueue_places_a_job_in_one_zone_or_not_at_all(
    kube: Kube, cells: list[Manifests], team: Callable[[], str], yard: Callable[..., Any], tmp_path: Path
) -> None:
    """kwok's nodes have EKS's labels: two in one zone, four in the other, where the first job leaves no room."""
    namespace = team()
    (cell,) = (one for one in cells if one.source == LARGE)
    names = [f"{zone}-{number}" for zone, count in (("a", 2), ("b", 4)) for number in range(count)]
    kube.put([fake_node(instance("p5en.48xlarge"), name, _near(name)) for name in names])
    kube.put(shared_claim(namespace), namespace)
    queues(kube, namespace, cpus=2000, memory=20000, gpus=64, near=tmp_path)
    features = ("kueue", "kueue/topology")
    first = applied(cell, Knobs(name="first", features=features))
    second = applied(cell, Knobs(name="second", features=(*features, "trainjob")))

    def zones(job: str, label: str) -> set[str]:
        pods = kube.list("pods", namespace, f"{label}={job}")
        placed = [pod["spec"].get("nodeName") for pod in pods]
        return {str(name)[:1] for name in placed} if len(placed) == 4 and all(placed) else set()

    try:
        kube.apply(written(first.objects), namespace)
        where = name_of(kinds.job_of(first).item), "training.kubeflow.org/job-name"
        kube.wait("the first job's nodes", lambda: zones(*where) == {"b"}, 180)
        _apply(kube, namespace, second.objects)
        late = name_of(kinds.job_of(second).item)
        waiting = _until(yard, namespace, late, "topology")
        assert waiting["cause"].startswith("queue"), waiting
        assert kube.list("pods", namespace, f"{TRAINJOB_LABEL}={late}") == []
        kube.run("delete", "pytorchjob", where[0], "-n", namespace)
        kube.wait("the second job's nodes", lambda: zones(late, TRAINJOB_LABEL) == {"b"}, 180)
    finally:
        kube.call("delete", "nodes", *names, "--wait=false")


def _near(name: str) -> dict[str, str]:
    """Return the labels that EKS gives a node, here with two nodes in each of the smallest groups."""
    zone, number = name[0], int(name[2:])
    layers = {1: zone, 2: zone, 3: f"{zone}-{number // 2}"}
    return {ZONE: zone} | {f"topology.k8s.aws/network-node-layer-{one}": group for one, group in layers.items()}
