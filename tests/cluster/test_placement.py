"""Cells placed by the real scheduler on nodes that look like the machines of tools/facts.

kwok plays the kubelets. NetworkPolicy objects are only checked for what they select: to enforce them takes a
network plugin that does (on EKS the VPC CNI with its policies switched on), and there is none here.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster.api import Object
from tests.cluster.kube import Kube, shared_claim
from tests.cluster.machines import INSTANCE_TYPE, fake_node
from tools.cli import invoke
from tools.facts.instances import instance
from tools.kube.manifests import Manifests, name_of
from tools.kube.selectors import ZONE
from tools.workload import operator_pods

NAMESPACE = "t-placement"
SECONDS = 240  # the operator makes some 300 pods, on a busy machine
CPU_NODE = "m5.xlarge"  # for cells that ask for no kind of node


def wanted_type(job: Object) -> str:
    """Return the instance type that a job's pods select."""
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    for rule in (rule for term in terms for rule in term.get("matchExpressions", [])):
        if rule["key"] == INSTANCE_TYPE:
            return str(rule["values"][0])
    return CPU_NODE


def nodes_for(cells: Sequence[Manifests]) -> list[Object]:
    """Return one node for each pod of the cells, of the types that they select."""
    types = [wanted_type(cell.job()) for cell in cells for _ in operator_pods.pods(cell.job())]
    numbered = ((kind, number) for kind, count in sorted(Counter(types).items()) for number in range(count))
    return [fake_node(instance(kind), f"{kind.replace('.', '-')}-{number}") for kind, number in numbered]


@pytest.fixture(scope="module")
def placed(kube: Kube, fake: None, cells: list[Manifests], rendered: dict[str, str]) -> Iterator[list[Object]]:
    """Every cell's pods, all cells at once, on exactly the nodes that they need."""
    accelerated = [cell for cell in cells if wanted_type(cell.job()) != CPU_NODE]
    kube.make_namespace(NAMESPACE, enforce="restricted")
    kube.put(shared_claim(NAMESPACE), NAMESPACE)
    kube.put(nodes_for(accelerated), NAMESPACE)
    for cell in accelerated:
        kube.apply(rendered[cell.source], NAMESPACE)
    expected = sum(len(operator_pods.pods(cell.job())) for cell in accelerated)
    seconds = kube.wait(
        f"{expected} pods on their nodes",
        lambda: sum(pod["status"]["phase"] == "Running" for pod in kube.list("pods", NAMESPACE)) == expected,
        SECONDS,
    )
    print(f"{len(accelerated)} cells, {expected} pods: placed and running {seconds:.1f} s after the last apply")
    yield kube.list("pods", NAMESPACE)
    kube.delete_namespace(NAMESPACE)
    kube.call("delete", "pv", f"{NAMESPACE}-trainyard", "--wait=false")
    kube.call("delete", "nodes", "--selector=trainyard-test=kwok")


def test_every_pod_is_on_a_node_of_its_kind(kube: Kube, cells: list[Manifests], placed: list[Object]) -> None:
    types = {name_of(node): node["metadata"]["labels"].get(INSTANCE_TYPE) for node in kube.list("nodes")}
    on = {name_of(pod): types[pod["spec"]["nodeName"]] for pod in placed}
    for cell in cells:
        wanted = wanted_type(cell.job())
        if wanted != CPU_NODE:
            pods = [pod.name for pod in operator_pods.pods(cell.job())]
            assert {on[name] for name in pods} == {wanted}, cell.source
    assert len(set(types.values())) >= 8


def test_every_pod_has_a_node_to_itself(placed: list[Object]) -> None:
    """A cell requests all that its machine can give."""
    used = Counter(pod["spec"]["nodeName"] for pod in placed)
    assert set(used.values()) == {1}


def test_one_more_pod_than_fits_waits(kube: Kube, cells: list[Manifests], placed: list[Object]) -> None:
    """The scheduler names a resource that the cell requests."""
    more = [_copy(cell) for cell in cells if wanted_type(cell.job()) != CPU_NODE]
    kube.put(more, NAMESPACE)
    waiting: dict[str, str] = {}

    def judged() -> bool:
        pods = kube.list("pods", NAMESPACE, "trainyard-test=extra")
        waiting.update({name_of(pod): _scheduling(pod) for pod in pods})
        return len(waiting) == len(more) and all(waiting.values())

    kube.wait("a verdict on every extra pod", judged, SECONDS)
    for pod in more:
        short = {name.strip(".") for name in re.findall(r"Insufficient ([\w./-]+)", waiting[name_of(pod)])}
        devices = {key for key in pod["spec"]["containers"][0]["resources"]["limits"] if "/" in key}
        assert devices & short, f"{name_of(pod)}: {waiting[name_of(pod)]}"


def test_a_pod_of_another_kind_of_machine_waits(kube: Kube, cells: list[Manifests], placed: list[Object]) -> None:
    """Control: a free node of the wrong type is not used."""
    kube.put([fake_node(instance("g5.48xlarge"), "free-g5", {INSTANCE_TYPE: "g5.elsewhere"})], NAMESPACE)
    pod = _copy(next(cell for cell in cells if wanted_type(cell.job()) == "g5.48xlarge"), "control")
    kube.put([pod], NAMESPACE)

    kube.wait("a verdict", lambda: _message(kube, name_of(pod), NAMESPACE) != "", SECONDS)
    assert "affinity/selector" in _message(kube, name_of(pod), NAMESPACE)


@pytest.mark.parametrize("there", [4, 2])
def test_a_job_with_efa_is_placed_in_one_zone(
    there: int, kube: Kube, fake: None, rendered: dict[str, str], namespace: str, asked: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Where no zone has room for all pods, the others wait, and `why` names the zone."""
    kind, zones = instance("p5en.48xlarge"), {"a": there, "b": 2}
    # Names of their own: pods of the other case may still end on its nodes.
    names = [(zone, f"{zone}-{there}-{one}") for zone, count in zones.items() for one in range(count)]
    nodes = [fake_node(kind, name, {ZONE: zone}) for zone, name in names]
    kube.put(shared_claim(namespace), namespace)
    kube.put(nodes, namespace)
    kube.apply(rendered["overlays/p5/llama-3-1-8b"], namespace)

    def settled() -> bool:
        pods = kube.list("pods", namespace)
        return len(pods) == 4 and all(pod["spec"].get("nodeName") or _scheduling(pod) for pod in pods)

    try:
        kube.wait("a node or a verdict for each pod", settled, SECONDS)
        used = [pod["spec"]["nodeName"] for pod in kube.list("pods", namespace) if pod["spec"].get("nodeName")]
        assert len({name[0] for name in used}) == 1
        if used[0].startswith("a"):
            assert len(used) == there
        if len(used) < 4:
            capsys.readouterr()
            assert invoke(["job", "why", "-n", namespace, "-v"]) == 1
            assert f"which are in {used[0][0]}" in capsys.readouterr().out
    finally:
        kube.call("delete", "nodes", *(name_of(node) for node in nodes), "--wait=false")


def test_cpu_cells_share_a_node_until_it_is_full(
    kube: Kube, fake: None, rendered: dict[str, str], cells: list[Manifests], namespace: str
) -> None:
    """3.92 processors hold three pods of one. The fourth waits."""
    cell = next(one for one in cells if one.source == "overlays/cpu/llama-tiny")
    kube.put(shared_claim(namespace), namespace)
    kube.put([fake_node(instance(CPU_NODE), "cpu-0")], namespace)
    kube.apply(rendered[cell.source], namespace)
    kube.put([_copy(cell, "third")], namespace)

    def running() -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in kube.list("pods", namespace))

    kube.wait("three pods on the node", lambda: running() == 3, SECONDS)
    kube.put([_copy(cell, "fourth")], namespace)
    fourth = f"fourth-{name_of(cell.job())}"
    kube.wait("a verdict", lambda: _message(kube, fourth, namespace) != "", SECONDS)
    assert "Insufficient cpu" in _message(kube, fourth, namespace)
    assert running() == 3
    kube.call("delete", "node", "cpu-0")


def test_network_policies_select_the_pods_of_their_job_and_no_others(
    kube: Kube, cells: list[Manifests], placed: list[Object]
) -> None:
    for cell in cells:
        job = cell.job()
        if wanted_type(job) == CPU_NODE:
            continue
        for policy in cell.of_kind("NetworkPolicy"):
            spec = (kube.get("networkpolicy", name_of(policy), NAMESPACE) or {})["spec"]
            peers = [peer["podSelector"] for rule in spec["ingress"] for peer in rule["from"]]
            for chosen in [spec["podSelector"], *peers]:
                labels = chosen["matchLabels"].items()
                selected = {name_of(pod) for pod in placed if labels <= pod["metadata"]["labels"].items()}
                assert selected == {pod.name for pod in operator_pods.pods(job)}


def _message(kube: Kube, name: str, namespace: str) -> str:
    return _scheduling(kube.get("pod", name, namespace) or {})


def _scheduling(pod: Object) -> str:
    """Return why the scheduler did not place a pod, or nothing."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    waits = (one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False")
    return next((str(one.get("message", "")) for one in waits), "")


def _copy(cell: Manifests, prefix: str = "extra") -> Object:
    """Return a pod like the cell's first, under another name and without its job's labels."""
    pod = operator_pods.pods(cell.job())[0]
    metadata = {"name": f"{prefix}-{pod.job}", "labels": {"trainyard-test": "extra"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(pod.spec)}
