"""validate and nodes: a complete cluster passes, each fault is found, and a fix is checked again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.aws.account import make_bucket
from tests.aws.conftest import Change, Yard
from tests.aws.kubectl import World
from tools.aws.session import Session
from tools.cluster import nodes, observe, snapshot, validate
from tools.cluster import spec as specs
from tools.cluster.cluster_env import Fact
from tools.cluster.finding import Finding
from tools.cluster.snapshot import CLASSES, CRD, OPERATOR_WEBHOOK, SLICES, Snapshot
from tools.cluster.spec import Spec
from tools.core import repo
from tools.core.verdict import State

Object = dict[str, Any]


WHOLE = Path(__file__).with_name("whole_cluster.yaml").read_text(encoding="utf-8")


def whole() -> dict[str, list[Object]]:
    """Return the objects of a cluster that has everything."""
    found: dict[str, list[Object]] = yaml.load(WHOLE, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def findings(objects: dict[str, list[Object]], **unseen: str) -> dict[str, Finding]:
    spec = specs.load(repo.root(), "gpu")
    return {one.name: one for one in validate.check(spec, Snapshot(objects, unseen))}


def test_a_complete_cluster_passes() -> None:
    found = findings(whole())
    assert {one.state for one in found.values()} == {State.PASS}, found
    assert list(found) == [
        name for name, _, _ in validate.CHECKS if name not in ("auto-resume", "bucket", "hyperpod operator")
    ]


def test_without_nodes_nothing_about_nodes_passes() -> None:
    found = findings({**whole(), "nodes": []})
    assert found["nodes"].state is State.FAIL
    assert not {"devices", "room", "efa", "health agents", "pods"} & set(found)


def take(objects: dict[str, list[Object]], *path: Any, value: Any = None) -> None:
    *way, last = path
    place: Any = objects
    for step in way:
        place = place[step]
    place[last] = value


CONFIG_ERROR = {
    "waiting": {
        "reason": "CreateContainerConfigError",
        "message": "container has runAsNonRoot and image will run as root",
    }
}
FAULTS: list[tuple[str, tuple[Any, ...], Any, State, str]] = [
    ("nodes", ("nodes",), [], State.FAIL, "none of 0 nodes"),
    ("nodes", ("nodes", 0, "status", "conditions", 0, "status"), "False", State.WARN, "1 of 2"),
    ("nodes", ("nodes", 0, "status", "conditions", 1, "status"), "True", State.WARN, "1 of 2"),
    ("devices", ("nodes", 0, "status", "allocatable", "nvidia.com/gpu"), "7", State.FAIL, "1 of 2 nodes"),
    ("devices", ("nodes", 0, "status", "allocatable"), {"pods": "110"}, State.FAIL, "too few"),
    ("room", ("nodes", 0, "status", "allocatable", "memory"), "1700Gi", State.FAIL, "1 of 2 nodes"),
    ("room", ("nodes", 1, "status", "allocatable", "cpu"), "160", State.FAIL, "1 of 2 nodes"),
    ("efa", ("nodes", 1, "status", "allocatable", "vpc.amazonaws.com/efa"), "0", State.FAIL, "no vpc"),
    ("efa", ("nodes", 1, "status", "allocatable", "vpc.amazonaws.com/efa"), "16", State.WARN, "fewer"),
    ("operator", (CRD,), [], State.FAIL, "is not served"),
    ("operator", (CRD, 0, "status"), {}, State.FAIL, "not established"),
    ("operator", (SLICES, 0, "endpoints", 0, "conditions", "ready"), False, State.FAIL, "does not answer"),
    ("operator", (CRD, 0, "metadata", "name"), "others", State.WARN, "only TrainJob is"),
    ("operator", (OPERATOR_WEBHOOK,), [], State.WARN, "nothing shows that the operator runs"),
    ("controllers", (CRD, 2, "metadata", "name"), "others", State.FAIL, "without JobSets"),
    ("controllers", (CRD, 3, "status"), {}, State.FAIL, "1 parts"),
    ("controllers", (SLICES, 1, "endpoints"), [], State.FAIL, "1 parts"),
    ("controllers", ("deployments.apps", 1, "status"), {}, State.FAIL, "1 parts"),
    (
        "controllers",
        ("deployments.apps",),
        [],
        State.WARN,
        "nothing shows that a controller of trainer, jobset, volcano",
    ),
    (
        "device plugins",
        ("pods", 0, "status", "containerStatuses", 0, "state"),
        CONFIG_ERROR,
        State.FAIL,
        "not all pods",
    ),
    ("device plugins", ("pods", 0, "status"), {"phase": "Pending"}, State.FAIL, "not all pods"),
    ("device plugins", ("daemonsets.apps", 0, "status"), {"desiredNumberScheduled": 2}, State.FAIL, "not all pods"),
    ("queue", ("localqueues.kueue.x-k8s.io",), [], State.FAIL, "no LocalQueue"),
    ("queue", ("clusterqueues.kueue.x-k8s.io", 0, "status"), {}, State.FAIL, "admits no job"),
    ("queue", ("clusterqueues.kueue.x-k8s.io", 0, "spec", "stopPolicy"), "Hold", State.FAIL, "admits no job"),
    ("queue", ("workloadpriorityclasses.kueue.x-k8s.io",), [], State.WARN, "trainyard-high and trainyard-low"),
    ("queue", ("queues.scheduling.volcano.sh", 0, "status", "state"), "Closed", State.FAIL, "is Closed"),
    ("dns", (SLICES, 2, "endpoints"), [], State.FAIL, "no ready endpoint"),
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
    found = findings(objects)[name]
    assert (found.state, said in found.summary) == (level, True), found
    assert found.remedy


def test_a_device_plugin_and_a_full_node_are_told_with_what_to_do() -> None:
    objects = whole()
    take(objects, "pods", 0, "status", "containerStatuses", 0, "state", value=CONFIG_ERROR)
    objects["nodes"][0]["status"]["allocatable"]["pods"] = "4"
    found = findings(objects)
    (line,) = found["device plugins"].evidence
    assert line.startswith(
        "kube-system/nvidia-device-plugin-a on a: CreateContainerConfigError: container has runAsNonRoot"
    )
    assert found["pods"].evidence == ["a: 2 of 4, wanted 5"]
    full = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Too many pods."}
    objects["pods"][0]["status"] = {"phase": "Pending", "conditions": [full]}
    (line,) = findings(objects)["device plugins"].evidence
    assert line.endswith(": Pending: 0/2 nodes are available: 2 Too many pods.")
    assert found["pods"].remedy == "yard cluster network gpu --prefix-delegation on; then replace the nodes"


def test_names_do_not_matter() -> None:
    """An operator with other names passes."""
    objects = whole()
    service = objects[OPERATOR_WEBHOOK][0]["webhooks"][0]["clientConfig"]["service"]
    service.update(namespace="elsewhere", name="another")
    metadata = objects[SLICES][0]["metadata"]
    metadata |= {"namespace": "elsewhere", "labels": {"kubernetes.io/service-name": "another"}}
    assert findings(objects)["operator"].state is State.PASS


def test_denied_kinds_are_unknown_and_not_failed() -> None:
    objects = whole()
    del objects["nodes"], objects[CRD]
    found = findings(objects, nodes="nodes is forbidden", **{CRD: "forbidden"})
    hidden = {name for name, one in found.items() if one.state is State.CANNOT_TELL}
    assert hidden == {
        *("nodes", "devices", "room", "efa", "operator", "controllers", "queue", "fsx", "health agents", "pods"),
        "hyperpod operator",
    }
    assert not any(one.state is State.FAIL for one in found.values())


def test_hyperpods_labels_are_monitoring_and_problems() -> None:
    objects = whole()
    labels = ("UnschedulablePendingReplacement", "Passed"), ("Schedulable", "Failed")
    for item, (health, deep) in zip(objects["nodes"], labels, strict=True):
        item["metadata"]["labels"] |= {
            "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
            "sagemaker.amazonaws.com/node-health-status": health,
            "sagemaker.amazonaws.com/deep-health-check-status": deep,
        }
    found = findings(objects)
    assert found["health agents"].state is State.PASS
    assert found["devices"].state is State.PASS
    assert "UnschedulablePendingReplacement (HyperPod replaces it" in found["nodes"].evidence[0]
    assert "deep health check: Failed (HyperPod reboots or replaces it" in found["nodes"].evidence[1]


@pytest.mark.parametrize(
    ("kubelet", "kueue", "level", "outside"),
    [
        ("v1.33.5-eks-1", "v0.12.3", State.PASS, []),
        ("v1.35.1-eks-1", "v0.12.2", State.WARN, ["kubernetes 1.35: documented are 1.28 to 1.33"]),
        ("v1.32.9", "v0.19.2", State.WARN, ["kueue 0.19.2: documented are 0.12.2 to 0.12.3"]),
    ],
)
def test_hyperpods_operator_is_held_against_its_documented_versions(
    kubelet: str, kueue: str, level: State, outside: list[str]
) -> None:
    objects = whole()
    objects[CRD].append({"metadata": {"name": "hyperpodpytorchjobs.sagemaker.amazonaws.com"}})
    objects["nodes"][0]["status"]["nodeInfo"] = {"kubeletVersion": kubelet}
    take(objects, "deployments.apps", 0, "spec", "template", "spec", "containers", 0, "image", value=f"kueue:{kueue}")
    found = findings(objects)["hyperpod operator"]
    assert found.state is level
    assert level is State.PASS or found.evidence == outside


def test_hyperpod_resumes_jobs_in_its_namespaces_only(change: Change) -> None:
    for team, level in (("hyperpod-team", State.PASS), ("kubeflow", State.PASS), ("training", State.WARN)):
        found = validate.check(change("gpu-hyperpod", TEAM_NAMESPACE=team), Snapshot(whole(), {}))
        (finding,) = [one for one in found if one.name == "auto-resume"]
        assert finding.state is level, team
    objects = whole()
    objects["nodes"][0]["status"]["nodeInfo"] = {"kubeletVersion": "v1.35.4-eks-1"}
    take(
        objects,
        "deployments.apps",
        0,
        "spec",
        "template",
        "spec",
        "containers",
        0,
        "image",
        value="x/training-operator:v1.9.4",
    )
    found = validate.check(change("gpu-hyperpod", TEAM_NAMESPACE="kubeflow"), Snapshot(objects, {}))
    (finding,) = [one for one in found if one.name == "auto-resume"]
    assert (finding.state, finding.evidence) == (
        State.WARN,
        ["training operator 1.9.4: documented are 1.7.0 to 1.8.1", "kubernetes 1.35: documented are 1.28 to 1.34"],
    )


@pytest.fixture
def world(session: Session, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """A function that replaces kubectl by a stand-in for a cluster with these objects and faults."""
    make_bucket(session, "example-training-data")
    monkeypatch.setattr(validate, "WEBHOOK_POLL", 0.01)

    def make(objects: dict[str, list[Object]], **faults: Any) -> World:
        stays_down = any("webhook" in name and times > 99 for name, times in faults.items())
        monkeypatch.setattr(validate, "WEBHOOK_SECONDS", 0.3 if stays_down else 60.0)
        return World(objects, **faults).install(monkeypatch)

    return make


def test_the_command_passes_and_saves_a_snapshot(world: Callable[..., World], yard: Yard, tmp_path: Path) -> None:
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


def test_where_only_trainjobs_are_served_these_are_tried(world: Callable[..., World], yard: Yard) -> None:
    objects = whole()
    objects[CRD] = [one for one in objects[CRD] if "pytorchjobs" not in one["metadata"]["name"]]
    world(objects)
    ran = yard("validate", "gpu")
    assert (ran.code, "a TrainingRuntime is accepted (dry run)" in ran.out) == (0, True), ran.out
    world(objects, refused=["delete"])
    assert "may not delete trainjobs.trainer.kubeflow.org, delete trainingruntimes" in yard("validate", "gpu").out


def test_a_webhook_is_waited_for_and_fails_when_it_stays_down(world: Callable[..., World], yard: Yard) -> None:
    world(whole(), webhook_fails=2)
    ran = yard("validate", "gpu")
    assert (ran.code, ran.err.count("a webhook is not ready yet")) == (0, 2)
    stays = world(whole(), webhook_fails=9_999)
    ran = yard("validate", "gpu")
    assert (ran.code, "is rejected for 0 s: " in ran.out) == (1, True)
    assert stays.webhook_fails < 9_998


def test_missing_rights_are_named(world: Callable[..., World], yard: Yard) -> None:
    world(whole(), refused=["create", "delete"])
    ran = yard("validate", "gpu")
    assert (ran.code, "you may not create pytorchjobs.kubeflow.org, delete" in ran.out) == (1, True)
    world(whole(), hidden=["csidrivers"])
    hidden = yard("validate", "gpu")
    assert (hidden.code, "CANNOT TELL" in hidden.out) == (3, True)


def broken() -> dict[str, list[Object]]:
    """A cluster without the namespace, whose new file systems belong to root."""
    objects = whole()
    objects["namespaces"] = []
    objects["csidrivers"][0]["spec"]["fsGroupPolicy"] = "None"
    return objects


def test_a_fix_changes_the_object_and_is_checked_again(world: Callable[..., World], yard: Yard) -> None:
    found = world(broken())
    ran = yard("validate", "gpu")
    assert (ran.code, found.objects) == (1, broken()), "without --fix nothing changes"
    fixed = yard("validate", "gpu", "--fix")
    assert fixed.code == 0, fixed.out
    assert "changed: create the namespace training" in fixed.err
    assert found.objects["namespaces"][0]["metadata"]["name"] == "training"
    assert found.objects["csidrivers"][0]["spec"]["fsGroupPolicy"] == "File"


def test_a_fix_waits_for_a_webhook(world: Callable[..., World], yard: Yard) -> None:
    world(broken(), apply_webhook_fails=2)
    assert yard("validate", "gpu", "--fix").code == 0
    world(broken(), apply_webhook_fails=9_999)
    assert "NOT fixed: create the namespace training" in yard("validate", "gpu", "--fix").err


def test_a_fix_without_effect_is_reported(world: Callable[..., World], yard: Yard) -> None:
    world(broken(), refused=["apply"], stubborn=True)
    ran = yard("validate", "gpu", "--fix")
    assert ran.code == 1
    assert "NOT fixed: create the namespace training: " in ran.err
    assert "not in effect: set fsGroupPolicy" in ran.err


def test_nodes_as_a_table(world: Callable[..., World], yard: Yard) -> None:
    objects = whole()
    one, two = ({"resources": {"limits": {"nvidia.com/gpu": str(count)}}} for count in (1, 2))
    spec = {"nodeName": "b", "containers": [one], "initContainers": [two | {"restartPolicy": "Always"}, two]}
    objects["pods"].append({"metadata": {"name": "s"}, "spec": spec, "status": {"phase": "Running"}})
    world(objects)
    ran = yard("nodes", "--json")
    first, second = json.loads(ran.out)
    assert ran.code == 0
    assert (first["devices"], first["devices_used"], second["devices_used"]) == (8, 8, 3), "with the sidecar"
    assert (first["pods_used"], second["pods_used"], first["efa"]) == (2, 1, 32)
    ill = copy.deepcopy(objects)
    ill["nodes"][1]["status"]["conditions"][2] |= {"status": "False", "reason": "NvidiaXID79Error"}
    world(ill, hidden=["pods"])
    ran = yard("nodes")
    assert (ran.code, "NvidiaXID79Error" in ran.out, "?/8" in ran.out) == (1, True, True)
    world({"nodes": []})
    assert yard("nodes").code == 1


def test_a_claim_may_wait_for_its_first_pod() -> None:
    """As those of k3s, kind and EBS do."""
    for mode, hidden, state in (
        ("WaitForFirstConsumer", {}, State.PASS),
        ("Immediate", {}, State.FAIL),
        (None, {CLASSES: "forbidden"}, State.CANNOT_TELL),
    ):
        objects = whole()
        claim = objects["persistentvolumeclaims"][0]
        claim |= {"status": {"phase": "Pending"}, "spec": {"storageClassName": "local-path"}}
        row = {"metadata": {"name": "local-path"}, "volumeBindingMode": mode}
        assert findings({**objects, CLASSES: [row] if mode else []}, **hidden)["claim"].state is state, mode


def test_clusters_outside_of_aws_have_other_names_and_monitors() -> None:
    here = Spec(Path(), {"TEAM_NAMESPACE": Fact("training")}, context="lab")
    objects = whole()
    for one in objects["nodes"]:
        one["spec"] = {}
        one["metadata"]["labels"] = {}
        one["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    (dns,) = [one for one in objects[SLICES] if one["metadata"]["labels"]["kubernetes.io/service-name"] == "kube-dns"]

    def found() -> dict[str, Finding]:
        return {one.name: one for one in validate.check(here, Snapshot(objects, {}))}

    assert "node-problem-detector" in str(found()["health agents"].remedy)
    assert found()["dns"].state is State.PASS
    for one in objects["nodes"]:
        one["status"]["conditions"].append({"type": "KernelDeadlock", "status": "False"})
    assert found()["health agents"].state is State.PASS
    rke2 = {"kubernetes.io/service-name": "rke2-coredns-rke2-coredns", "k8s-app": "kube-dns"}
    dns["metadata"]["labels"] = rke2
    assert found()["dns"].state is State.PASS
    dns["metadata"]["labels"] = {**rke2, "k8s-app": "other"}
    assert found()["dns"].state is State.CANNOT_TELL
    dns["metadata"]["labels"] = {"kubernetes.io/service-name": "kube-dns"}
    dns["endpoints"] = []
    assert found()["dns"].state is State.FAIL


def test_parts_of_cards_are_devices_too() -> None:
    """Nodes with MIG offer no whole card; their plugin runs, and is not lacking."""
    objects = whole()
    room = objects["nodes"][0]["status"]["allocatable"]
    del room["nvidia.com/gpu"]
    assert "nvidia" in [folder for folder, _ in observe.lacking("training", Snapshot(objects, {}))]
    room["nvidia.com/mig-1g.10gb"] = "56"
    assert findings(objects)["devices"].state is State.PASS
    row = nodes.table(Snapshot(objects, {}))[0]
    assert (row.device, row.devices) == ("nvidia.com/mig-1g.10gb", 56)
    assert "nvidia" not in [folder for folder, _ in observe.lacking("training", Snapshot(objects, {}))]
    room |= {"nvidia.com/mig-1g.10gb": "0", "nvidia.com/gpu": "0"}
    assert findings(objects)["devices"].state is State.FAIL
