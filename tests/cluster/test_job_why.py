"""`yard job why` on a real API server, scheduler and operator: what they do is the situation.

kwok plays the kubelets, so that what needs a container is in the corpus of tests/job and not here. Where the
scheduler places a pod, our arithmetic must find room, and where it does not, the same obstacle.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.build import Progress
from tests.cluster.kube import Kube, Object, shared_claim
from tests.cluster.machines import fake_node
from tests.job import pages
from tests.job.conftest import KINDS as MACHINES
from tests.job.confusion import Confusion, confusion, said
from tests.job.world import World
from tools.cell import Manifests, name_of
from tools.facts.instances import instance
from tools.job.collect import collect
from tools.job.why import Explanation, explain
from tools.kubectl import Kubectl

CPU, P5, G5 = "overlays/cpu/llama-tiny", "overlays/p5/llama-3-1-8b", "overlays/g5/llama-2-7b"
KINDS = {CPU: "m5.xlarge", P5: "p5en.48xlarge", G5: "g5.48xlarge"}
SECONDS = 60.0  # until controllers, scheduler and operator have said what they say


class Bed:
    """One namespace with one job, and nodes of its own that end with it."""

    def __init__(self, kube: Kube, namespace: str, cells: list[Manifests], cell: str) -> None:
        self.kube, self.namespace = kube, namespace
        self.objects = copy.deepcopy(next(one for one in cells if one.source == cell).objects)
        self.job = next(one for one in self.objects if one["kind"] == "PyTorchJob")
        self.kind = KINDS[cell]
        self.claim = shared_claim(namespace)
        self._nodes: list[str] = []

    @property
    def spec(self) -> Object:
        """The pods' spec."""
        found: Object = self.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        return found

    @property
    def replicas(self) -> int:
        """How many pods the job has."""
        return int(self.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])

    def nodes(
        self, count: int | None = None, kind: str | None = None, room: dict[str, str] | None = None
    ) -> list[Object]:
        """Nodes of the cell's kind, enough of them; `room` changes what they can give."""
        made = []
        for _ in range(self.replicas if count is None else count):
            node = fake_node(instance(kind or self.kind), f"why-{uuid.uuid4().hex[:8]}")
            node["status"]["allocatable"] = node["status"]["allocatable"] | (room or {})
            made.append(node)
        return made

    def start(self, nodes: list[Object]) -> None:
        """Bring up the nodes, then the job."""
        if nodes:
            self.kube.apply(nodes, None)
        self._nodes += [name_of(node) for node in nodes]
        if self.claim:
            self.kube.apply(self.claim, self.namespace)
        self.kube.apply(self.objects, self.namespace)

    def answer(self, wanted: str) -> Explanation:
        """What `why` says once it says `wanted` twice in a row, else what it says at the end."""
        kubectl = Kubectl(None, self.namespace)
        began, last, found = time.monotonic(), "", None
        while found is None or time.monotonic() - began < SECONDS:
            found = explain(collect(kubectl, name_of(self.job), logs=False, run=False))
            kind = said(found)
            if kind == last == wanted:
                return found
            last = kind
            time.sleep(0.5)
        return found

    def end(self) -> None:
        """Take everything away, and wait for the pods: they hold what the next one needs."""
        self.kube.call("delete", "pytorchjobs", "--all", f"--namespace={self.namespace}", "--wait=false")
        self.kube.wait("pods to go", lambda: not self.kube.list("pods", self.namespace), 90)
        if self._nodes:
            self.kube.call("delete", "nodes", *self._nodes, "--wait=false")
        self.kube.call("delete", "pv", f"{self.namespace}-trainyard", "--wait=false", "--ignore-not-found")


COUNTS: Counter[tuple[str, str]] = Counter()  # of (what was planted, what was said)
Plant = Callable[[Bed], list[Any]]
PLANTED: list[tuple[str, str, Plant]] = []


def planted(cause: str, cell: str = CPU) -> Callable[[Plant], Plant]:
    """Add a situation: the function changes the bed and returns the nodes to bring up."""

    def add(plant: Plant) -> Plant:
        PLANTED.append((cause, cell, plant))
        return plant

    return add


@planted("healthy", G5)
def enough_nodes(bed: Bed) -> list[Object]:
    return bed.nodes()


@planted("unschedulable/nvidia.com/gpu", G5)
def one_node_too_few(bed: Bed) -> list[Object]:
    return bed.nodes(bed.replicas - 1)


@planted("unschedulable/nvidia.com/gpu", G5)
def device_plugin_missing(bed: Bed) -> list[Object]:
    return bed.nodes(room={"nvidia.com/gpu": "0"})


@planted("unschedulable/vpc.amazonaws.com/efa", P5)
def efa_plugin_missing(bed: Bed) -> list[Object]:
    return bed.nodes(room={"vpc.amazonaws.com/efa": "0"})


@planted("unschedulable/hugepages-2Mi", P5)
def no_huge_pages(bed: Bed) -> list[Object]:
    return bed.nodes(room={"hugepages-2Mi": "0"})


@planted("unschedulable/affinity", P5)
def another_instance_type(bed: Bed) -> list[Object]:
    return bed.nodes(kind="p4d.24xlarge")


@planted("unschedulable/taint", G5)
def nodes_of_another_team(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["taints"] = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    return nodes


@planted("unschedulable/cordoned", G5)
def cordoned(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["unschedulable"] = True
    return nodes


@planted("unschedulable/cpu", G5)
def processors_are_fewer_than_asked(bed: Bed) -> list[Object]:
    return bed.nodes(room={"cpu": "2"})


@planted("unschedulable/memory", G5)
def memory_is_less_than_asked(bed: Bed) -> list[Object]:
    return bed.nodes(room={"memory": "8Gi"})


@planted("unschedulable/pods", G5)
def no_room_for_a_pod(bed: Bed) -> list[Object]:
    return bed.nodes(room={"pods": "0"})


@planted("unschedulable/zone", G5)
def volume_in_another_zone(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "eu-west-1a"
    term = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1b"]}
    volume = next(one for one in bed.claim if one["kind"] == "PersistentVolume")
    volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    return nodes


@planted("unschedulable/selector")
def selector_that_no_node_has(bed: Bed) -> list[Object]:
    bed.spec["nodeSelector"] = {"node-group": bed.namespace}
    return bed.nodes()


@planted("unschedulable/apart", G5)
def two_pods_exclude_each_other(bed: Bed) -> list[Object]:
    labels = {"training.kubeflow.org/job-name": name_of(bed.job)}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    bed.spec["affinity"] |= {"podAntiAffinity": rule}
    bed.spec["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return bed.nodes(1)


@planted("claim-missing", G5)
def claim_never_made(bed: Bed) -> list[Object]:
    bed.claim = []
    return bed.nodes()


@planted("claim-pending", G5)
def storage_class_misspelt(bed: Bed) -> list[Object]:
    claim = next(one for one in bed.claim if one["kind"] == "PersistentVolumeClaim")
    claim["spec"].pop("volumeName")
    claim["spec"]["storageClassName"] = "fsx-lustre"
    bed.claim = [claim]
    return bed.nodes()


@planted("quota", G5)
def quota_of_gpus(bed: Bed) -> list[Object]:
    hard = {"requests.nvidia.com/gpu": "12"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": hard},
    }
    bed.kube.apply([quota], bed.namespace)
    return bed.nodes()


@planted("pod-security", G5)
def a_path_of_the_host(bed: Bed) -> list[Object]:
    bed.spec["volumes"].append({"name": "host", "hostPath": {"path": "/dev/shm"}})
    return bed.nodes()


@planted("serviceaccount-missing", G5)
def service_account_not_applied(bed: Bed) -> list[Object]:
    bed.objects.remove(next(one for one in bed.objects if one["kind"] == "ServiceAccount"))
    return bed.nodes()


@planted("refused", G5)
def restart_policy_misspelt(bed: Bed) -> list[Object]:
    bed.job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailur"
    return bed.nodes()


@planted("suspended", G5)
def suspended(bed: Bed) -> list[Object]:
    bed.job["spec"]["runPolicy"]["suspend"] = True
    return bed.nodes()


@planted("scheduler-absent", G5)
def a_scheduler_that_is_not_installed(bed: Bed) -> list[Object]:
    bed.spec["schedulerName"] = "volcano"
    return bed.nodes()


@planted("queue", G5)
def pods_are_gated(bed: Bed) -> list[Object]:
    bed.spec["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return bed.nodes()


@pytest.fixture
def asked(kube: Kube, fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `yard` find this cluster's kubectl and kubeconfig."""
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, kube.environment[name])


@pytest.fixture
def bed(kube: Kube, namespace: str, cells: list[Manifests], asked: None) -> Iterator[Callable[[str], Bed]]:
    """A maker of beds."""
    made: list[Bed] = []

    def make(cell: str) -> Bed:
        made.append(Bed(kube, namespace, cells, cell))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize(("cause", "cell", "plant"), PLANTED, ids=[plant.__name__ for *_, plant in PLANTED])
def test_why_names_what_the_cluster_does(
    cause: str, cell: str, plant: Plant, bed: Callable[[str], Bed]
) -> None:
    one = bed(cell)
    one.start(plant(one))
    found = one.answer(cause)
    COUNTS[cause, said(found)] += 1
    causes = [(each.kind, each.summary, each.evidence) for each in found.causes]
    assert said(found) == cause, f"{found.summary} {causes} {found.looked}"


@pytest.mark.cluster_all
def test_the_tables_of_what_was_taken_for_what(say: Progress) -> None:
    """Of the situations above, on this cluster, and of the whole corpus."""
    cells = pages.rendered()
    corpus = confusion(lambda name: World(cells[name], MACHINES[name]))
    say(f"why on the corpus\n{corpus.table()}\n")
    assert corpus.good
    if not COUNTS:
        pytest.skip("no situation was planted before: run the whole file")
    say(f"why on the cluster\n{Confusion(COUNTS).table()}\n")
    assert Confusion(COUNTS).good
