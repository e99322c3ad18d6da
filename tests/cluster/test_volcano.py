"""The job that TorchX makes on Volcano's real controllers, with a cluster of their own. kwok plays the machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster import build, volcano
from tests.cluster.api import Object
from tests.cluster.conftest import own_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube, shared_claim
from tests.cluster.machines import fake_node
from tests.parts.gomodule import Progress
from tools.cells import kustomize
from tools.cells.knobs import Knobs, applied
from tools.cli import invoke
from tools.cluster import platform
from tools.cluster.cluster_env import Fact
from tools.core import repo
from tools.facts.instances import instance
from tools.kube.manifests import Manifests, parse, read
from tools.workload import kinds
from tools.workload.workload import Workload

RECORDED = repo.root() / "tests/neuron/bertcompile.yaml"  # two pods, each a whole trn1.32xlarge
QUEUE = "base/plugins/volcano/queue"
MACHINES = ("trn1-0", "trn1-1", "trn1-2")

pytestmark = pytest.mark.cluster_all


@pytest.fixture(scope="module")
def control_plane(say: Progress) -> Iterator[ControlPlane]:
    with own_plane(say, (*build.CLUSTER, "volcano")) as plane:
        plane.start()
        volcano.start(plane)
        say(f"Volcano answers {plane.age:.0f} s after the cluster was begun")
        yield plane


@pytest.fixture(scope="module")
def kube(control_plane: ControlPlane) -> Kube:
    control_plane.kube.put(fake_node(instance("trn1.32xlarge"), name) for name in MACHINES)
    return control_plane.kube


@pytest.fixture
def team(kube: Kube, asked: None, namespace: str) -> str:
    """A namespace with the shared volume, beside a queue of 32 Neuron devices: two machines of three."""
    values = {"QUEUE_GPUS": "0", "QUEUE_NEURON": "32"}
    text = kustomize.ensure(repo.root(), print).build(repo.root() / QUEUE)
    kube.put(parse(platform.substitute(text, {name: Fact(value, 0) for name, value in values.items()}), QUEUE).objects)
    kube.put(shared_claim(namespace), namespace)
    return namespace


@pytest.fixture
def yard(team: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A function that runs `yard job ... --json` and returns its answer; with `code=None` at any end."""

    def run(*words: str, code: int | None = 0) -> Any:
        capsys.readouterr()
        ended = invoke(["job", *words, "-n", team, "--json"])
        assert code in (ended, None), capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    return run


def torchx(name: str, team: str) -> Workload:
    """Return the recorded job under another name, in the team's namespace."""
    job = kinds.job_of(applied(read(RECORDED), Knobs(name=name)))
    job.item["metadata"]["namespace"] = team
    return job


def pods(kube: Kube, team: str, job: Workload) -> list[Object]:
    return kube.list("pods", team, f"{job.job_label}={job.name}")


def placed(kube: Kube, team: str, job: Workload) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in pods(kube, team, job) if "nodeName" in pod["spec"]}


def test_two_jobs_of_torchx_share_a_queue_of_neuron_devices(
    kube: Kube, team: str, yard: Callable[..., Any], say: Progress
) -> None:
    """The first is placed as a whole; no pod of the second is, until the first one stops."""
    first, second = torchx("first", team), torchx("second", team)
    kube.put(first.manifests.objects, team)
    kube.wait("two machines", lambda: len(placed(kube, team, first)) == 2, 60)
    found = {pod["metadata"]["name"]: pod for pod in pods(kube, team, first)}
    for computed in first.pods():
        real = found.pop(computed.name)
        assert real["metadata"]["labels"].items() >= computed.labels.items()
        assert environment(kube, team, real).items() >= environment(kube, team, {"spec": computed.spec}).items()
        assert f"{real['spec']['hostname']}.{real['spec']['subdomain']}" in computed.hosts
    assert not found
    kube.wait("its state", lambda: yard("list")[0]["state"] == "Running", 60)
    assert len(yard("status", first.name)["pods"]) == 2
    assert yard("why", first.name)["state"] == "healthy"

    kube.put(second.manifests.objects, team)
    kube.wait("its cause", lambda: yard("why", second.name, code=None)["cause"] is not None, 60)
    waiting = yard("why", second.name, code=1)
    say(f"why of the second: {json.dumps(waiting)[:800]}")
    assert waiting["cause"] == "queue", waiting
    assert "Neuron devices allocated, the gang needs 32" in json.dumps(waiting)
    assert placed(kube, team, second) == set(), "a machine is free, and the queue is full"

    stopped = yard("stop", first.name, code=3)
    assert stopped["result"] == "suspended"
    assert pods(kube, team, first) == []
    kube.wait("its state", lambda: {row["job"]: row["state"] for row in yard("list")}[first.name] == "Suspended", 60)
    assert yard("why", first.name, code=1)["cause"] == "suspended"
    kube.wait("two machines", lambda: len(placed(kube, team, second)) == 2, 60)
    assert yard("stop", second.name, "--delete", code=3)["result"] == "deleted"


def environment(kube: Kube, team: str, pod: Object) -> dict[str, str]:
    """Return a pod's variables; the plugin svc keeps its own in a ConfigMap."""
    found = {}
    for one in pod["spec"]["containers"][0]["env"]:
        source = (one.get("valueFrom") or {}).get("configMapKeyRef")
        if source:
            found[one["name"]] = (kube.get("configmap", source["name"], team) or {})["data"][source["key"]]
        elif "value" in one:
            found[one["name"]] = one["value"]
    return found


def test_a_webhook_refuses_what_preflight_fails(kube: Kube, team: str) -> None:
    """minAvailable above the number of pods: the corpus of preflight has it as a FAIL."""
    text = (repo.root() / "tests/preflight/corpus/bad/volcano-min-available.yaml").read_text(encoding="utf-8")
    done = kube.call("create", f"--namespace={team}", "--dry-run=server", "-f", "-", given=text)
    assert "denied the request" in done.err, done
    good = Manifests("good", read(repo.root() / "tests/preflight/corpus/good/volcano.yaml").objects)
    kube.put(good.objects, team)
