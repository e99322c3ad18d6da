"""`yard cluster validate` and `nodes` on a real API server: RBAC, types, a webhook that is down, fixes.

kwok plays the kubelets. Nobody here runs pods, so the test writes what DNS and the FSx driver would: their
EndpointSlices, CSIDriver and CSINodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.conftest import own_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.machines import fake_node
from tests.parts.gomodule import Progress
from tools import cli
from tools.cluster import bucket, isolation, validate
from tools.facts.instances import EFA, NVIDIA, instance

CLUSTER, TEAM, FSX = "gpu", "training", "fsx.csi.aws.com"
NODES = {"gpu-0": "p5.48xlarge", "gpu-1": "p5.48xlarge", "cpu-0": "m5.large"}
HEALTHY = {"type": "KernelReady", "status": "True", "reason": "KernelIsReady", "message": "no trouble"}
# A member of the team: everything with jobs there and nothing else, as AmazonEKSEditPolicy in a namespace.
GUEST = "system:serviceaccount:training:guest"


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here is no AWS account with the cluster's bucket; tests/aws asks about one."""
    monkeypatch.setattr(bucket, "check", lambda *_: [])


@pytest.fixture(scope="module")
def plane(say: Progress) -> Iterator[ControlPlane]:
    """Its own control plane: nodes that other tests lose would be found here."""
    with own_plane(say) as plane:
        plane.start()
        _furnish(plane.kube)
        yield plane


def _furnish(kube: Kube) -> None:
    """Create three nodes, and the traces of DNS, of the operator's Service and of the FSx driver."""
    for name, kind in NODES.items():
        kube.put([fake_node(instance(kind), name)])
    slices = [_slice("kube-system", "kube-dns"), _slice("kubeflow", "training-operator")]
    driver = {"attachRequired": False, "fsGroupPolicy": "None"}
    serving = {"drivers": [{"name": FSX, "nodeID": "i-0"}]}
    kube.put(
        [
            *slices,
            _object("storage.k8s.io/v1", "CSIDriver", FSX, spec=driver),
            *(_object("storage.k8s.io/v1", "CSINode", name, spec=serving) for name in NODES),
        ]
    )
    for name in NODES:
        kube.wait(f"{name} to be Ready", lambda name=name: "Ready" in _kinds(kube, name), 60)  # type: ignore[misc]
        write_status(kube, name, conditions=[HEALTHY])


def _kinds(kube: Kube, node: str) -> set[str]:
    conditions = ((kube.get("node", node) or {}).get("status") or {}).get("conditions") or []
    return {one["type"] for one in conditions}


def _object(version: str, kind: str, name: str, namespace: str | None = None, **rest: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _slice(namespace: str, service: str) -> Object:
    made = _object("discovery.k8s.io/v1", "EndpointSlice", f"{service}-test", namespace)
    made["metadata"]["labels"] = {"kubernetes.io/service-name": service}
    endpoint = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    return made | {"addressType": "IPv4", "endpoints": [endpoint], "ports": []}


def write_status(kube: Kube, node: str, **status: Any) -> None:
    """Write a part of a node's status as its kubelet would. Conditions are merged by type."""
    patch = json.dumps({"status": status})
    kube.run("patch", "node", node, "--subresource=status", "--type=strategic", f"--patch={patch}")


@pytest.fixture
def yard(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any]]:
    """A function that runs `yard cluster ... --json` on this cluster and returns exit code and answer."""
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, plane.kube.environment[name])
    monkeypatch.setattr(validate, "WEBHOOK_SECONDS", 1.0)
    monkeypatch.setattr(validate, "WEBHOOK_POLL", 0.2)
    monkeypatch.setattr(isolation, "STARTS", 2.0)
    monkeypatch.setattr(isolation, "SETTLES", 1)

    def run(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = cli.invoke(["cluster", *words, "--json"])
        captured = capsys.readouterr()
        assert captured.out, captured.err
        return code, json.loads(captured.out)

    return run


def levels(answer: Any) -> dict[str, str]:
    return {one["name"]: one["level"] for one in answer["findings"]}


def finding(answer: Any, name: str) -> Any:
    return next(one for one in answer["findings"] if one["name"] == name)


def test_an_empty_cluster_is_fixed_as_far_as_it_can_be_from_here(plane: ControlPlane, yard: Callable[..., Any]) -> None:
    """The namespace gets base/plugins/namespace and the driver is changed. The claim stays."""
    code, before = yard("validate", CLUSTER)
    assert code == 1
    bad = {name for name, level in levels(before).items() if level == "FAIL"}
    assert bad == {"namespace", "fsx", "claim", "admission"}
    assert plane.kube.get("namespace", TEAM) is None, "without --fix nothing changes"
    code, after = yard("validate", CLUSTER, "--fix")
    assert (code, {name for name, level in levels(after).items() if level == "FAIL"}) == (1, {"claim"})
    labels = (plane.kube.get("namespace", TEAM) or {})["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert (plane.kube.get("csidriver", FSX) or {})["spec"]["fsGroupPolicy"] == "File"
    plane.kube.put(_claim(), TEAM)
    phase = lambda: ((plane.kube.get("pvc", "trainyard", TEAM) or {}).get("status") or {}).get("phase")  # noqa: E731
    plane.kube.wait("the claim to be bound", lambda: phase() == "Bound", 60)
    code, whole = yard("validate", CLUSTER)
    assert levels(whole)["isolation"] == "CANNOT TELL", "kwok's pods try nothing"
    others = {level for name, level in levels(whole).items() if name != "isolation"}
    assert (code, others) == (3, {"PASS"}), whole
    policies = plane.kube.list("networkpolicies", TEAM)
    assert {one["metadata"]["name"] for one in policies} == {"default-deny", "egress"}


def _claim() -> list[Object]:
    access, size = ["ReadWriteMany"], {"storage": "1Gi"}
    where = {"claimRef": {"namespace": TEAM, "name": "trainyard"}, "hostPath": {"path": "/nowhere"}}
    volume = {"accessModes": access, "capacity": size, "storageClassName": "", **where}
    claim = {"accessModes": access, "resources": {"requests": size}, "storageClassName": ""}
    return [
        _object("v1", "PersistentVolume", "trainyard", spec=volume),
        _object("v1", "PersistentVolumeClaim", "trainyard", spec=claim),
    ]


def test_what_nodes_advertise_is_counted(plane: ControlPlane, yard: Callable[..., Any]) -> None:
    """Devices, EFA, room for pods and conditions of real Node objects, then as they were before."""
    kube = plane.kube
    sound = (kube.get("node", "gpu-1") or {})["status"]["allocatable"]
    ill = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error", "message": ""}
    write_status(kube, "gpu-1", allocatable={NVIDIA: "7", EFA: "31", "pods": "2"}, conditions=[ill])
    code, answer = yard("validate", CLUSTER)
    assert code == 1
    assert "gpu-1 (p5.48xlarge): 7 of 8 nvidia.com/gpu" in finding(answer, "devices")["evidence"]
    assert "gpu-1 (p5.48xlarge): 31 of 32" in finding(answer, "efa")["evidence"]
    assert finding(answer, "pods")["evidence"] == ["gpu-1: 0 of 2, wanted 3"]
    assert "NvidiaXID79Error" in finding(answer, "nodes")["evidence"][0]
    code, rows = yard("nodes")
    by_name = {row["name"]: row for row in rows}
    assert (code, set(by_name)) == (1, set(NODES))
    assert by_name["gpu-1"]["troubles"] == ["AcceleratedHardwareReady is False (NvidiaXID79Error)"]
    assert (by_name["gpu-0"]["devices"], by_name["gpu-0"]["efa"], by_name["cpu-0"]["devices"]) == (8, 32, 0)
    well = ill | {"status": "True", "reason": "Ready"}
    write_status(kube, "gpu-1", allocatable=sound, conditions=[well])
    assert yard("nodes")[0] == 0


def test_a_pod_on_a_node_holds_its_devices(plane: ControlPlane, yard: Callable[..., Any]) -> None:
    limits = {NVIDIA: "8", EFA: "32"}
    container = {"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    plane.kube.put([_object("v1", "Pod", "holds", spec=spec)])

    def held() -> list[tuple[int, int]]:
        rows = yard("nodes")[1]
        return sorted((row["devices_used"], row["efa_used"]) for row in rows if row["devices"])

    plane.kube.wait("the pod to be placed", lambda: held() == [(0, 0), (8, 32)], 60)
    plane.kube.run("delete", "pod", "holds", "-n", "default", "--now")
    plane.kube.wait("the devices to be free", lambda: held() == [(0, 0), (0, 0)], 60)


def test_dns_that_is_bad_is_found(plane: ControlPlane, yard: Callable[..., Any]) -> None:
    bad = _slice("kube-system", "kube-dns")
    bad["endpoints"][0]["conditions"]["ready"] = False
    plane.kube.put([bad])
    assert levels(yard("validate", CLUSTER)[1])["dns"] == "FAIL"
    plane.kube.put([_slice("kube-system", "kube-dns")])
    assert levels(yard("validate", CLUSTER)[1])["dns"] == "PASS"


def test_a_webhook_that_is_down_is_waited_for_and_then_said(plane: ControlPlane, yard: Callable[..., Any]) -> None:
    """The API server's own words. When it is up again, the same command passes."""
    plane.process("training-operator").kill()
    code, answer = yard("validate", CLUSTER)
    admission = finding(answer, "admission")
    assert (code, admission["level"]) == (1, "FAIL")
    assert "rejected for 1 s" in admission["summary"]
    assert "failed calling webhook" in admission["summary"]
    plane.restart_operator()
    assert levels(yard("validate", CLUSTER)[1])["admission"] == "PASS"


def test_a_type_that_is_gone_is_found(plane: ControlPlane, yard: Callable[..., Any]) -> None:
    """The last test that needs the operator: the operator does not come back from this."""
    plane.kube.run("delete", "crd", "pytorchjobs.kubeflow.org")
    code, answer = yard("validate", CLUSTER)
    assert (code, levels(answer)["operator"], levels(answer)["admission"]) == (1, "FAIL", "FAIL")


@pytest.fixture
def guest(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubeconfig of a user who may list nodes and nothing else."""
    config = json.loads(plane.kube.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"]["as"] = GUEST
    path = tmp_path / "guest"
    path.write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    subject = {"kind": "ServiceAccount", "name": "guest", "namespace": TEAM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sees-nodes"}
    version = "rbac.authorization.k8s.io/v1"
    binding = _object(version, "ClusterRoleBinding", "sees-nodes", roleRef=role, subjects=[subject])
    plane.kube.put([_object(version, "ClusterRole", "sees-nodes", rules=rules), binding])


def test_rights_are_those_of_whoever_asks(plane: ControlPlane, yard: Callable[..., Any], guest: None) -> None:
    """A missing right to look is not a fault; a missing right to act is one, by the API server's review."""
    code, answer = yard("validate", CLUSTER)
    found = levels(answer)
    assert code == 1
    assert (found["nodes"], found["devices"], found["rights"]) == ("PASS", "PASS", "FAIL")
    hidden = {name for name, level in found.items() if level == "CANNOT TELL"}
    assert {"operator", "dns", "fsx", "namespace", "claim", "pods"} <= hidden
    assert "create pytorchjobs.kubeflow.org" in finding(answer, "rights")["summary"]
    rules = [
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create"]},
    ]
    version = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": "guest", "namespace": TEAM}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "trains"}
    role = _object(version, "Role", "trains", TEAM, rules=rules)
    binding = _object(version, "RoleBinding", "trains", TEAM, roleRef=reference, subjects=[subject])
    plane.kube.put([role, binding])
    plane.kube.wait("the role", lambda: levels(yard("validate", CLUSTER)[1])["rights"] == "PASS", 30)
