"""validate and nodes: a whole cluster passes, each thing taken away is found, a fix is looked at again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.aws.kubectl import World
from tools.cluster import snapshot, validate
from tools.cluster import spec as specs
from tools.cluster.finding import Finding
from tools.cluster.snapshot import CRD, OPERATOR_WEBHOOK, SLICES, Snapshot
from tools.core import repo
from tools.core.verdict import State

Object = dict[str, Any]


def node(name: str, kind: str, devices: int, efa: int, **labels: str) -> Object:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "MemoryPressure", "status": "False"},
        {"type": "AcceleratedHardwareReady", "status": "True"},
    ]
    given = {"node.kubernetes.io/instance-type": kind, "topology.kubernetes.io/zone": "us-west-2a"}
    allocatable = {"pods": "110", "nvidia.com/gpu": str(devices), "vpc.amazonaws.com/efa": str(efa)}
    return {
        "metadata": {
            "name": name,
            "labels": {**given, **{f"sagemaker.amazonaws.com/{k}": v for k, v in labels.items()}},
        },
        "spec": {},
        "status": {"conditions": conditions, "allocatable": allocatable},
    }


def endpoints(namespace: str, service: str, ready: bool = True) -> Object:
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"name": f"{service}-x", "namespace": namespace, "labels": labels},
        "endpoints": [{"conditions": {"ready": ready}}],
    }


def pod(name: str, where: str, gpus: int = 0, phase: str = "Running") -> Object:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    spec = {"nodeName": where, "containers": [{"name": "c", "resources": resources}]}
    return {"metadata": {"name": name, "namespace": "x"}, "spec": spec, "status": {"phase": phase}}


def whole() -> dict[str, list[Object]]:
    """A cluster with two p5 nodes and all that a job needs, for clusters/gpu."""
    service = {"service": {"namespace": "kubeflow", "name": "training-operator"}}
    hook = {
        "name": "validator.kubeflow.org",
        "clientConfig": service,
        "rules": [{"apiGroups": ["kubeflow.org"]}],
    }
    names = ("a", "b")
    return {
        "nodes": [node(name, "p5.48xlarge", 8, 32) for name in names],
        "namespaces": [{"metadata": {"name": "training"}}],
        CRD: [
            {
                "metadata": {"name": "pytorchjobs.kubeflow.org"},
                "status": {"conditions": [{"type": "Established", "status": "True"}]},
            }
        ],
        OPERATOR_WEBHOOK: [{"metadata": {"name": "some-name"}, "webhooks": [hook]}],
        "csidrivers": [{"metadata": {"name": "fsx.csi.aws.com"}, "spec": {"fsGroupPolicy": "File"}}],
        "csinodes": [
            {"metadata": {"name": name}, "spec": {"drivers": [{"name": "fsx.csi.aws.com"}]}} for name in names
        ],
        "pods": [pod("w", "a", 8), pod("done", "b", 8, "Succeeded")],
        SLICES: [endpoints("kubeflow", "training-operator"), endpoints("kube-system", "kube-dns")],
        "persistentvolumeclaims": [
            {"metadata": {"name": "trainyard", "namespace": "training"}, "status": {"phase": "Bound"}}
        ],
    }


def judged(objects: dict[str, list[Object]], **unseen: str) -> dict[str, Finding]:
    spec = specs.load(repo.root(), "gpu")
    return {one.name: one for one in validate.check(spec, Snapshot(objects, unseen))}


def test_a_whole_cluster_passes() -> None:
    found = judged(whole())
    assert {one.state for one in found.values()} == {State.PASS}, found
    assert list(found) == [name for name, _, _ in validate.CHECKS if name != "auto-resume"]


def take(objects: dict[str, list[Object]], *path: Any, value: Any = None) -> None:
    """Set what `path` leads to."""
    *way, last = path
    place: Any = objects
    for step in way:
        place = place[step]
    place[last] = value


FAULTS: list[tuple[str, tuple[Any, ...], Any, State, str]] = [
    ("nodes", ("nodes",), [], State.FAIL, "none of 0 nodes"),
    ("nodes", ("nodes", 0, "status", "conditions", 0, "status"), "False", State.WARN, "1 of 2"),
    ("nodes", ("nodes", 0, "status", "conditions", 1, "status"), "True", State.WARN, "1 of 2"),
    ("devices", ("nodes", 0, "status", "allocatable", "nvidia.com/gpu"), "7", State.FAIL, "1 of 2 nodes"),
    ("devices", ("nodes", 0, "status", "allocatable"), {"pods": "110"}, State.FAIL, "too few"),
    ("efa", ("nodes", 1, "status", "allocatable", "vpc.amazonaws.com/efa"), "0", State.FAIL, "no vpc"),
    ("efa", ("nodes", 1, "status", "allocatable", "vpc.amazonaws.com/efa"), "16", State.WARN, "fewer"),
    ("operator", (CRD,), [], State.FAIL, "is not served"),
    ("operator", (CRD, 0, "status"), {}, State.FAIL, "not established"),
    ("operator", (SLICES, 0, "endpoints", 0, "conditions", "ready"), False, State.FAIL, "does not answer"),
    ("dns", (SLICES, 1, "endpoints"), [], State.FAIL, "no ready endpoint"),
    ("fsx", ("csidrivers",), [], State.FAIL, "no CSI driver"),
    ("fsx", ("csinodes", 1, "spec", "drivers"), [], State.FAIL, "1 of 2 nodes do not serve"),
    (
        "fsx",
        ("csidrivers", 0, "spec", "fsGroupPolicy"),
        "ReadWriteOnceWithFSType",
        State.FAIL,
        "belong to root",
    ),
    ("namespace", ("namespaces",), [], State.FAIL, "namespace training does not"),
    ("claim", ("persistentvolumeclaims",), [], State.FAIL, "no claim"),
    ("claim", ("persistentvolumeclaims", 0, "status", "phase"), "Pending", State.FAIL, "is Pending"),
    (
        "health agents",
        ("nodes", 0, "status", "conditions"),
        [{"type": "Ready", "status": "True"}],
        State.WARN,
        "1",
    ),
    ("pods", ("nodes", 0, "status", "allocatable", "pods"), "3", State.WARN, "room for fewer"),
]


@pytest.mark.parametrize(("name", "path", "value", "level", "said"), FAULTS)
def test_each_fault_is_found_by_its_own_check(
    name: str, path: tuple[Any, ...], value: Any, level: State, said: str
) -> None:
    objects = whole()
    take(objects, *path, value=value)
    found = judged(objects)[name]
    assert (found.state, said in found.summary) == (level, True), found
    assert found.remedy


def test_names_do_not_count() -> None:
    """An operator installed under another name serves as well."""
    objects = whole()
    service = objects[OPERATOR_WEBHOOK][0]["webhooks"][0]["clientConfig"]["service"]
    service.update(namespace="elsewhere", name="another")
    objects[SLICES][0] = endpoints("elsewhere", "another")
    assert judged(objects)["operator"].state is State.PASS


def test_what_may_not_be_seen_is_no_fault() -> None:
    objects = whole()
    del objects["nodes"], objects[CRD]
    found = judged(objects, nodes="nodes is forbidden", **{CRD: "forbidden"})
    hidden = {name for name, one in found.items() if one.state is State.CANNOT_TELL}
    assert hidden == {"nodes", "devices", "efa", "operator", "fsx", "health agents", "pods"}
    assert not any(one.state is State.FAIL for one in found.values())


def test_hyperpods_label_is_a_watch_and_a_trouble() -> None:
    objects = whole()
    objects["nodes"] = [
        node("a", "ml.p5.48xlarge", 8, 32, **{"node-health-status": "UnschedulablePendingReplacement"}),
        node(
            "b",
            "ml.p5.48xlarge",
            8,
            32,
            **{"node-health-status": "Schedulable", "deep-health-check-status": "Failed"},
        ),
    ]
    found = judged(objects)
    assert found["health agents"].state is State.PASS
    assert found["devices"].state is State.PASS
    assert "UnschedulablePendingReplacement (HyperPod replaces it" in found["nodes"].evidence[0]
    assert "deep health check: Failed (HyperPod reboots or replaces it" in found["nodes"].evidence[1]


def test_hyperpod_resumes_jobs_in_its_namespaces_only(change: Callable[..., specs.Spec]) -> None:
    for team, level in (("hyperpod-team", State.PASS), ("kubeflow", State.PASS), ("training", State.WARN)):
        found = validate.check(change("gpu-hyperpod", TEAM_NAMESPACE=team), Snapshot(whole(), {}))
        (finding,) = [one for one in found if one.name == "auto-resume"]
        assert finding.state is level, team


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """A function that puts the stand-in in kubectl's place, over a world with these objects and faults."""
    monkeypatch.setattr(validate, "WEBHOOK_SECONDS", 0.3)
    monkeypatch.setattr(validate, "WEBHOOK_POLL", 0.01)

    def make(objects: dict[str, list[Object]], **faults: Any) -> World:
        return World(objects, **faults).install(monkeypatch)

    return make


def test_the_command_passes_and_keeps_a_snapshot(
    world: Callable[..., World], yard: Callable[..., Any], tmp_path: Path
) -> None:
    world(whole())
    ran = yard("validate", "gpu", "--save", str(tmp_path / "kept"))
    assert ran.code == 0, ran.out + ran.err
    assert "in training you may do all that a job needs" in ran.out
    assert "a PyTorchJob is accepted (dry run)" in ran.out
    world({})
    again = yard("validate", "gpu", "--from", str(tmp_path / "kept"))
    assert (again.code, "you may" in again.out) == (0, False)
    assert snapshot.load(tmp_path / "kept").find("namespaces", "training")
    assert yard("validate", "gpu", "--from", str(tmp_path)).code == 2


def test_a_webhook_that_comes_up_is_waited_for_and_one_that_does_not_is_a_fault(
    world: Callable[..., World], yard: Callable[..., Any]
) -> None:
    world(whole(), webhook_fails=2)
    ran = yard("validate", "gpu")
    assert (ran.code, ran.err.count("a webhook is not ready yet")) == (0, 2)
    stays = world(whole(), webhook_fails=9_999)
    ran = yard("validate", "gpu")
    assert (ran.code, "is rejected for 0 s: " in ran.out) == (1, True)
    assert stays.webhook_fails < 9_998


def test_missing_rights_are_named(world: Callable[..., World], yard: Callable[..., Any]) -> None:
    world(whole(), refused=["create", "delete"])
    ran = yard("validate", "gpu")
    assert (ran.code, "you may not create pytorchjobs.kubeflow.org, delete" in ran.out) == (1, True)
    world(whole(), hidden=["csidrivers"])
    hidden = yard("validate", "gpu")
    assert (hidden.code, "CANNOT TELL" in hidden.out) == (3, True)


def broken() -> dict[str, list[Object]]:
    """No namespace, and a driver that keeps new file systems to root."""
    objects = whole()
    objects["namespaces"] = []
    objects["csidrivers"][0]["spec"]["fsGroupPolicy"] = "None"
    return objects


def test_a_fix_changes_the_object_and_is_looked_at_again(
    world: Callable[..., World], yard: Callable[..., Any]
) -> None:
    found = world(broken())
    ran = yard("validate", "gpu")
    assert (ran.code, found.objects) == (1, broken()), "without --fix nothing changes"
    fixed = yard("validate", "gpu", "--fix")
    assert fixed.code == 0, fixed.out
    assert "changed: create the namespace training" in fixed.err
    assert found.objects["namespaces"][0]["metadata"]["name"] == "training"
    assert found.objects["csidrivers"][0]["spec"]["fsGroupPolicy"] == "File"


def test_a_fix_waits_for_a_webhook(world: Callable[..., World], yard: Callable[..., Any]) -> None:
    world(broken(), apply_webhook_fails=2)
    assert yard("validate", "gpu", "--fix").code == 0
    world(broken(), apply_webhook_fails=9_999)
    assert "NOT fixed: create the namespace training" in yard("validate", "gpu", "--fix").err


def test_a_fix_that_did_not_happen_says_so(world: Callable[..., World], yard: Callable[..., Any]) -> None:
    world(broken(), refused=["apply"], stubborn=True)
    ran = yard("validate", "gpu", "--fix")
    assert ran.code == 1
    assert "NOT fixed: create the namespace training: " in ran.err
    assert "not in effect: set fsGroupPolicy" in ran.err


def test_nodes_as_a_table(world: Callable[..., World], yard: Callable[..., Any]) -> None:
    objects = whole()
    world(objects)
    ran = yard("nodes", "--json")
    first, second = json.loads(ran.out)
    assert ran.code == 0
    assert (first["devices"], first["devices_used"], second["devices_used"]) == (8, 8, 0)
    assert (first["pods_used"], second["pods_used"], first["efa"]) == (1, 0, 32)
    ill = copy.deepcopy(objects)
    ill["nodes"][1]["status"]["conditions"][2] = {
        "type": "AcceleratedHardwareReady",
        "status": "False",
        "reason": "NvidiaXID79Error",
    }
    world(ill, hidden=["pods"])
    ran = yard("nodes")
    assert (ran.code, "NvidiaXID79Error" in ran.out, "?/8" in ran.out) == (1, True, True)
    world({"nodes": []})
    assert yard("nodes").code == 1
