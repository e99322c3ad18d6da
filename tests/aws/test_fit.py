"""Whether a job fits a cluster by the facts of its cluster.env: `yard preflight CELL --cluster NAME`."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.workload.beds import bed
from tools import cli
from tools.cells import locate
from tools.cells.knobs import Knobs, applied
from tools.cluster import fit, machines, observe
from tools.cluster import spec as specs
from tools.cluster.snapshot import CRD, Snapshot
from tools.cluster.spec import Spec
from tools.core import repo
from tools.core.errors import UserError
from tools.kube.manifests import Manifests
from tools.preflight.evaluate import evaluate

P5, CPU = "p5/llama-3-1-8b", "cpu/llama-tiny"  # 4 p5en.48xlarge; 2 pods on any node
THERE = "JOB_KINDS=Job,PyTorchJob\nCLAIMS=trainyard\n"
PLACE = "ADOPTED=true\nAWS_REGION=us-west-2\nZONES=us-west-2b\n"
ONPREM = "MACHINES_1={} cpu=8000m memory=32000Mi with kubernetes.io/arch=amd64\n"


def cluster(tmp_path: Path, facts: str, place: str = PLACE) -> Spec:
    path = tmp_path / "clusters/lab/cluster.env"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(place + facts, encoding="utf-8")
    return specs.load(tmp_path, "lab")


@pytest.mark.parametrize(
    ("cell", "facts", "expected", "said"),
    [
        (CPU, THERE + ONPREM.format(2), "PASS", "fit on the cluster's nodes"),
        (P5, THERE + "NODES_P5=p5en.48xlarge 0-4 us-west-2b\n", "PASS", "fit on the cluster's nodes"),
        (P5, THERE + "NODES_P5=p5en.48xlarge 0-3 us-west-2b\n", "FAIL", "4 pods"),
        (P5, THERE + "NODES_G5=g5.12xlarge 0-9 us-west-2b\n", "FAIL", "no node is of the kind"),
        (P5, THERE + ONPREM.format(9), "FAIL", "no node is of the kind"),
        (CPU, THERE + ONPREM.format(2).replace("memory=32000Mi", "memory=100Mi"), "FAIL", "each needs"),
        (CPU, THERE, "CANNOT TELL", "no nodes are described"),
        (CPU, "CLAIMS=trainyard\n" + ONPREM.format(2), "CANNOT TELL", "the kind PyTorchJob is unknown"),
        (CPU, "JOB_KINDS=PyTorchJob\n" + ONPREM.format(2), "CANNOT TELL", "claim trainyard is unknown"),
        (
            CPU,
            THERE.replace("PyTorchJob", "JobSet") + ONPREM.format(2),
            "FAIL",
            "have the kind PyTorchJob",
        ),
        (
            CPU,
            THERE.replace("=trainyard", "=none") + ONPREM.format(2),
            "FAIL",
            "have the claim trainyard",
        ),
    ],
)
def test_a_cell_is_compared_with_the_facts(cell: str, facts: str, expected: str, said: str, tmp_path: Path) -> None:
    found = fit.check(cluster(tmp_path, facts), locate.rendered(cell))
    states = {one.state.value for one in found}
    assert states == ({"PASS"} if expected == "PASS" else {"PASS", expected}), found
    assert any(one.state.value == expected and said in one.summary for one in found), found


def test_a_label_of_which_nothing_is_known_is_neither_there_nor_absent(tmp_path: Path) -> None:
    facts = THERE + "NODES_G5=g5.12xlarge 0-9 us-west-2b\n"
    manifests = locate.rendered(CPU)
    spec = manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["nodeSelector"] = {"team.example/pool": "a"}
    (found,) = [one for one in fit.check(cluster(tmp_path, facts), manifests) if "pods of" in one.summary]
    assert found.state.value == "CANNOT TELL"
    assert "team.example/pool" in found.summary
    manifests.jobs()[0]["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "ours"
    queue = [one.state.value for one in fit.check(cluster(tmp_path, facts + "QUEUES=none\n"), manifests)]
    assert "FAIL" in queue


DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:{}-gpu-py312-cu128-ubuntu22.04-ec2"


@pytest.mark.parametrize(
    ("name", "kubernetes", "image", "state", "lines"),
    [
        *(
            ("gpu-hyperpod", None, image, "WARN", ["kueue 0.19.2: documented are", "=1.33"])
            for image in (None, DLC.format("2.7.1"))
        ),
        ("lab", "1.33", DLC.format("2.7.1"), "PASS", ["KUBERNETES_VERSION=1.33", "torch 2.7.1"]),
        ("lab", "1.33", "nvcr.io/nvidia/pytorch:24.12-py3", "PASS", ["torch 2.6"]),
        ("lab", "1.33", DLC.format("2.8.0"), "WARN", ["torch 2.8.0: documented are 2.4.0 to 2.7.1"]),
        ("lab", "1.33", None, "WARN", [": documented are 2.4.0 to 2.7.1", "trainer-cuda:0.1.0: torch 2."]),
        ("lab", "1.33", "registry.example/ours@sha256:" + "0" * 64, "CANNOT TELL", ["torch unknown"]),
        ("lab", "1.34", DLC.format("2.7.1"), "WARN", ["kubernetes 1.34: documented are 1.28 to 1.33"]),
        ("lab", "", DLC.format("2.7.1"), "CANNOT TELL", ["no KUBERNETES_VERSION"]),
    ],
)
def test_the_operator_of_hyperpod_is_documented_for_some_versions(
    name: str, kubernetes: str | None, image: str | None, state: str, lines: list[str], tmp_path: Path
) -> None:
    """The cluster of the repository takes newer ones, so that its jobs are PyTorchJobs: of these nothing is said."""
    made = applied(locate.rendered(P5), Knobs(features=("hyperpod-job",), image=image))
    fact = f"KUBERNETES_VERSION={kubernetes}\n" if kubernetes else ""
    known = specs.load(repo.root(), name) if kubernetes is None else cluster(tmp_path, fact)
    (found,) = [one for one in fit.check(known, made) if "AWS documents" in one.summary]
    assert found.state.value == state, found
    for line in lines:
        assert any(line in one for one in found.evidence), found.evidence
    assert not [one for one in fit.check(known, locate.rendered(P5)) if "AWS documents" in one.summary]


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob", "Job", "JobSet"])
def test_a_queue_takes_only_kinds_of_which_kueue_has_an_integration(kind: str) -> None:
    objects = bed(kind)
    objects[0]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "trainyard"}
    found = fit.check(specs.load(repo.root(), "gpu"), Manifests("job.yaml", objects))
    said = "Kueue has no integration of JobSet: the job starts without its queue trainyard"
    assert [one.summary for one in found if one.state.value == "WARN"] == ([said] if kind == "JobSet" else [])


@pytest.mark.parametrize(
    ("served", "queue", "said"),
    [
        ([], "default", {"FAIL": "the cluster does not have the kind Job.batch.volcano.sh"}),
        (["jobs.batch.volcano.sh"], "default", {}),
        (["jobs.batch.volcano.sh"], "team", {"CANNOT TELL": "whether Volcano has the queue team is unknown"}),
    ],
)
def test_a_job_of_volcano_needs_volcano_and_no_queue_of_kueue(
    served: list[str], queue: str, said: dict[str, str], tmp_path: Path
) -> None:
    """Kubernetes' own Job has the same kind."""
    seen = Snapshot({CRD: [{"metadata": {"name": name}} for name in served]})
    facts = f"JOB_KINDS={','.join(observe._job_kinds(seen))}\nQUEUES=none\n" + LAB.format(4)
    objects = bed("Volcano")
    objects[0]["spec"]["queue"] = queue
    found = fit.check(cluster(tmp_path, facts), Manifests("job.yaml", objects))
    others = {one.state.value: one.summary.partition(":")[0] for one in found if one.state.value != "PASS"}
    assert others == said
    assert [one.state.value for one in fit.check(cluster(tmp_path, facts), Manifests("job.yaml", bed("Job")))] == [
        "PASS",
        "PASS",
    ]


def test_a_clusters_kueue_is_that_of_its_own_base(tmp_path: Path) -> None:
    """Its directory is outside of this checkout, and reached by a link; the control is this checkout's Kueue."""
    real, link = tmp_path / "theirs", tmp_path / "link"
    link.symlink_to(real)
    release = real / fit.KUEUE / "release.yaml"
    shutil.copytree(repo.root() / fit.KUEUE, release.parent)
    release.write_text(release.read_text().replace("kubeflow.org/pytorchjob", "kubeflow.org/tfjob"))
    known = cluster(link, "")
    (known.directory / "plugins").mkdir()
    (known.directory / "plugins/kustomization.yaml").write_text(f"resources: [../../../{fit.KUEUE}]\n")
    objects = bed("PyTorchJob")
    objects[0]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "trainyard"}
    said = "Kueue has no integration of PyTorchJob: the job starts without its queue trainyard"
    for where, expected in ((known, [said]), (specs.load(repo.root(), "gpu"), [])):
        found = fit.check(where, Manifests("job.yaml", objects))
        assert [one.summary for one in found if one.state.value == "WARN"] == expected


@pytest.mark.parametrize(
    ("facts", "release"),
    [
        ("OPERATORS=kueue:v0.19.2,training-operator:v1-855e096\n", "1.7.0"),  # that of HyperPod's Helm chart
        ("OPERATORS=training-operator:v1.8.1\n", "1.8.1"),
        ("OPERATORS=training-operator:v1-04f9f13,training-operator:v1-93c5489\n", ""),
        ("OPERATORS=training-operator:latest\n", ""),
        ("OPERATORS=none\n", ""),
        ("", ""),
    ],
)
def test_a_clusters_directory_states_its_operator(facts: str, release: str, tmp_path: Path) -> None:
    assert fit.operator(cluster(tmp_path, facts).directory) == release
    assert [fit.operator(repo.root() / "clusters" / name) for name in ("gpu", "gpu-hyperpod")] == ["1.9.4", ""]


@pytest.mark.parametrize(("version", "documented"), [("1.27", False), ("1.34", True), ("1.35", False)])
def test_hyperpod_is_documented_for_some_versions_of_kubernetes(version: str, documented: bool, tmp_path: Path) -> None:
    facts = f"KUBERNETES_VERSION={version}\nHYPERPOD_CLUSTER_NAME=ours\n"
    found = fit.check(cluster(tmp_path, facts), locate.rendered(P5))
    said = [
        one.state.value for one in found if one.summary == "AWS documents HyperPod for other versions of Kubernetes"
    ]
    assert said == ([] if documented else ["WARN"])


@pytest.mark.parametrize(("operator", "state"), [("", "PASS"), ("1.7.0", "PASS"), ("1.8.1", "PASS"), ("1.9.4", "WARN")])
def test_auto_resume_is_documented_for_some_releases_of_the_operator(operator: str, state: str) -> None:
    made = applied(locate.rendered(P5), Knobs(features=("hyperpod",)))
    made.jobs()[0]["metadata"]["namespace"] = "kubeflow"
    found = [one for one in evaluate(made, operator=operator).verdicts if one.details["rule"] == "auto-resume"]
    assert [one.state.value for one in found] == [state]


def test_roles_that_fit_only_one_by_one_are_unknown(tmp_path: Path) -> None:
    manifests = locate.rendered(CPU)
    roles = manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"]
    roles["Master"] = {**roles["Worker"], "replicas": 1}
    del manifests.jobs()[0]["spec"]["elasticPolicy"]
    one_pod = ONPREM.replace("memory=32000Mi", "memory=4000Mi")  # on each node
    states = {}
    for count in (2, 3):
        found = fit.check(cluster(tmp_path, THERE + one_pod.format(count)), manifests)
        states[count] = {one.state.value for one in found}
    assert states == {2: {"PASS", "CANNOT TELL"}, 3: {"PASS"}}


P5EN = "NODES_{0}=p5en.48xlarge {1}-{1} us-west-2{2}\n"
LABELLED = (
    "MACHINES_1={} cpu=190 memory=1900Gi hugepages-2Mi=20Gi nvidia.com/gpu=8 vpc.amazonaws.com/efa=16"
    " with kubernetes.io/arch=amd64 node.kubernetes.io/instance-type=p5en.48xlarge"
)
IN_A = LABELLED + " topology.kubernetes.io/zone=us-west-2a\n"


def of_pods(tmp_path: Path, facts: str, manifests: Manifests) -> list[tuple[str, str]]:
    """Return state and summary of what is said of pods on a cluster with two zones."""
    spec = cluster(tmp_path, THERE + facts, PLACE.replace("us-west-2b", "us-west-2a,us-west-2b"))
    return [(one.state.value, one.summary) for one in fit.check(spec, manifests) if " fit" in one.summary]


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        (P5EN.format("A", 2, "a") + P5EN.format("B", 2, "b"), "FAIL", "in one zone, and there is room for 2 in us"),
        (P5EN.format("A", 1, "a") + P5EN.format("B", 4, "b"), "PASS", "fit on"),
        (P5EN.format("A", 2, "a") + P5EN.format("B", 2, "a"), "PASS", "fit on"),
        (P5EN.format("A", 2, "a") + IN_A.format(2), "PASS", "fit on"),
        (P5EN.format("B", 2, "b") + IN_A.format(3), "FAIL", "3 in us-west-2a, 2 in us-west-2b"),
        (P5EN.format("A", 2, "a") + LABELLED.format(2), "CANNOT TELL", "MACHINES_1 does not state topology"),
        (P5EN.format("A", 2, "a") + LABELLED.format(1), "FAIL", "each needs"),
        (P5EN.format("A", 4, "a") + LABELLED.format(1), "PASS", "fit on"),
    ],
)
def test_pods_that_stay_together_need_room_in_one_zone(facts: str, state: str, said: str, tmp_path: Path) -> None:
    manifests = locate.rendered(P5)
    ((found, summary),) = of_pods(tmp_path, facts, manifests)
    assert (found, said in summary) == (state, True), summary
    del manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"]["podAffinity"]
    ((found, _),) = of_pods(tmp_path, facts, manifests)
    assert found == ("FAIL" if "each needs" in said else "PASS")


def test_a_group_may_have_all_its_nodes_in_one_of_its_zones(tmp_path: Path) -> None:
    manifests = locate.rendered(CPU)
    template = manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    term = {"labelSelector": {"matchLabels": {"app": "ours"}}, "topologyKey": "topology.kubernetes.io/zone"}
    template["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    group = "NODES_C=m5.large 2-2 us-west-2a,us-west-2b\n"
    assert [state for state, _ in of_pods(tmp_path, group, manifests)] == ["PASS"], "they are not its own pods"
    term["labelSelector"] = {"matchLabels": {"training.kubeflow.org/job-name": manifests.jobs()[0]["metadata"]["name"]}}
    ((state, summary),) = of_pods(tmp_path, group, manifests)
    assert (state, "NODES_C is in 2 zones" in summary) == ("CANNOT TELL", True), summary


@pytest.mark.parametrize(
    ("zones", "state"), [(["a"], "CANNOT TELL"), (["a", "b"], "PASS"), (["a", "b", "c"], "PASS"), (["c"], "FAIL")]
)
def test_a_selector_may_leave_out_a_zone_of_a_group(zones: list[str], state: str, tmp_path: Path) -> None:
    manifests = locate.rendered(CPU)
    spec = manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    rule = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [f"us-west-2{one}" for one in zones]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    ((found, _),) = of_pods(tmp_path, "NODES_C=m5.2xlarge 2-2 us-west-2a,us-west-2b\n", manifests)
    assert found == state


@pytest.mark.parametrize(
    ("masters", "workers", "states"),
    [("a", "b", ["PASS", "PASS", "CANNOT TELL"]), ("a", "a", ["PASS", "PASS"])],
)
def test_roles_that_stay_together_need_the_same_zone(
    masters: str, workers: str, states: list[str], tmp_path: Path
) -> None:
    manifests = locate.rendered(P5)
    roles = manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"]
    roles["Master"] = {**copy.deepcopy(roles["Worker"]), "replicas": 1}
    roles["Master"]["template"]["spec"]["affinity"]["nodeAffinity"] = {}
    roles["Master"]["template"]["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    facts = P5EN.format("B", 9, workers) + P5EN.format("A", 2, masters).replace("p5en.", "p5.")
    assert sorted(state for state, _ in of_pods(tmp_path, facts, manifests)) == sorted(states)


@pytest.mark.parametrize(
    ("amounts", "state", "said"),
    [
        ("memory=32000Mi", "CANNOT TELL", "MACHINES_1 does not state cpu"),
        ("cpu=8", "CANNOT TELL", "MACHINES_1 does not state memory"),
        ("nvidia.com/gpu=4", "CANNOT TELL", "MACHINES_1 does not state cpu, memory"),
        ("memory=1Gi", "FAIL", "each needs"),
        ("cpu=8 memory=32000Mi", "PASS", "fit on"),
        ("cpu=8 memory=32000Mi pods=2", "PASS", "fit on"),
        ("cpu=8 memory=32000Mi pods=1", "FAIL", "each needs"),
    ],
)
def test_what_machines_do_not_state_is_unknown(amounts: str, state: str, said: str, tmp_path: Path) -> None:
    """The two pods of the cell ask for processors and memory, and would both fit on this node."""
    line = f"MACHINES_1=1 {amounts} with kubernetes.io/arch=amd64\n"
    ((found, summary),) = of_pods(tmp_path, line, locate.rendered(CPU))
    assert (found, said in summary) == (state, True), summary


LAB = "MACHINES_1={} cpu=64 memory=500Gi nvidia.com/gpu=8 with kubernetes.io/arch=amd64\n"
TWO_GPUS = {"limits": {"nvidia.com/gpu": "2", "cpu": "8", "memory": "9Gi"}}


def small_pods(count: int, resources: Any, **spec: Any) -> Manifests:
    """Return the job of a cell with so many pods that ask for this."""
    manifests = locate.rendered(CPU)
    job = manifests.jobs()[0]
    del job["spec"]["elasticPolicy"]
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = count
    worker["template"]["spec"] |= spec
    worker["template"]["spec"]["containers"][0]["resources"] = resources
    return manifests


def own_pods(kind: str, key: str) -> dict[str, Any]:
    name = locate.rendered(CPU).jobs()[0]["metadata"]["name"]
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": name}}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


HOST = "kubernetes.io/hostname"


@pytest.mark.parametrize(
    ("nodes", "affinity", "state", "said"),
    [
        (1, {}, "PASS", "fit on"),
        (1, own_pods("podAntiAffinity", HOST), "FAIL", "each needs cpu 8, memory 9663676416, node 1, nvidia.com/gpu 2"),
        (4, own_pods("podAntiAffinity", HOST), "PASS", "fit on"),
        (4, own_pods("podAntiAffinity", "lab/rack"), "CANNOT TELL", "unknown: which nodes share lab/rack is not"),
        (1, own_pods("podAffinity", HOST), "CANNOT TELL", f"which nodes share {HOST} is not stated"),
        (0, own_pods("podAffinity", "lab/rack"), "FAIL", "each needs"),
    ],
)
def test_pods_that_stay_apart_take_a_node_each(
    nodes: int, affinity: dict[str, Any], state: str, said: str, tmp_path: Path
) -> None:
    ((found, summary),) = of_pods(tmp_path, LAB.format(nodes), small_pods(4, TWO_GPUS, affinity=affinity))
    assert (found, said in summary) == (state, True), summary


def spread(key: str, skew: int = 1, **more: Any) -> dict[str, Any]:
    name = locate.rendered(CPU).jobs()[0]["metadata"]["name"]
    own = {"matchLabels": {"training.kubeflow.org/job-name": name}}
    rule = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": own}
    return {"topologySpreadConstraints": [{**rule, **more}]}


ZONE = "topology.kubernetes.io/zone"
IN_ZONE = (
    "MACHINES_{0}={1} cpu=64 memory=500Gi nvidia.com/gpu=8 with kubernetes.io/arch=amd64 " + ZONE + "=us-west-2{0}\n"
)


@pytest.mark.parametrize(
    ("facts", "spec", "state", "said"),
    [
        (LAB.format(4), spread(HOST), "PASS", "fit on"),
        (LAB.format(2), spread(HOST, 2), "PASS", "fit on"),
        (
            LAB.format(2),
            spread(HOST),
            "CANNOT TELL",
            "nodes without a pod, also cordoned ones, count in topologySpread",
        ),
        (LAB.format(2).replace("gpu=8", "gpu=2"), spread(HOST), "FAIL", "each needs"),
        (LAB.format(2), spread(HOST, whenUnsatisfiable="ScheduleAnyway"), "PASS", "fit on"),
        (LAB.format(2), spread(HOST, labelSelector={"matchLabels": {"app": "other"}}), "PASS", "fit on"),
        (LAB.format(4), spread("lab/rack"), "CANNOT TELL", "which nodes share lab/rack is not stated"),
        (IN_ZONE.format("a", 1) + IN_ZONE.format("b", 1), spread(ZONE), "PASS", "fit on"),
        (
            IN_ZONE.format("a", 3) + IN_ZONE.format("b", 1).replace("gpu=8", "gpu=2"),
            spread(ZONE),
            "CANNOT TELL",
            f"over {ZONE} need room in each zone",
        ),
    ],
)
def test_pods_that_are_spread_need_room_on_each_host_or_in_each_zone(
    facts: str, spec: dict[str, Any], state: str, said: str, tmp_path: Path
) -> None:
    """Four pods with two of the eight GPUs of a node."""
    ((found, summary),) = of_pods(tmp_path, facts, small_pods(4, TWO_GPUS, **spec))
    assert (found, said in summary) == (state, True), summary


def test_a_node_chosen_by_its_name_is_unknown(tmp_path: Path) -> None:
    rule = {"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    ((found, summary),) = of_pods(tmp_path, LAB.format(1), small_pods(2, TWO_GPUS, affinity=affinity))
    assert (found, "does not state metadata.name" in summary) == ("CANNOT TELL", True), summary


def test_a_port_of_the_host_is_taken_once(tmp_path: Path) -> None:
    for network, port, state in ((False, {"hostPort": 29500}, "FAIL"), (True, {}, "FAIL"), (False, {}, "PASS")):
        manifests = small_pods(2, TWO_GPUS, hostNetwork=network)
        (pod,) = [role["template"]["spec"] for role in manifests.jobs()[0]["spec"]["pytorchReplicaSpecs"].values()]
        pod["containers"][0]["ports"] = [{"containerPort": 29500, **port}]
        assert [found for found, _ in of_pods(tmp_path, LAB.format(1), manifests)] == [state]


@pytest.mark.parametrize(
    ("facts", "asked", "state"),
    [
        (LAB.format(1), {}, "PASS"),  # pods that ask for nothing
        (LAB.format(1), {"ephemeral-storage": "1Gi"}, "CANNOT TELL"),
        (LAB.format(1).replace("cpu=64", "cpu=64 ephemeral-storage=9Gi"), {"ephemeral-storage": "1Gi"}, "PASS"),
        ("NODES_T=trn1.32xlarge 1-1 us-west-2b\n", {"aws.amazon.com/neuroncore": "8"}, "PASS"),
        ("NODES_T=trn1.32xlarge 1-1 us-west-2b\n", {"aws.amazon.com/neuroncore": "9"}, "FAIL"),
        ("NODES_T=trn1.32xlarge 1-1 us-west-2b\n", {"aws.amazon.com/neurondevice": "4"}, "PASS"),
    ],
)
def test_what_nodes_offer_by_other_names_or_unstated(
    facts: str, asked: dict[str, str], state: str, tmp_path: Path
) -> None:
    ((found, summary),) = of_pods(tmp_path, facts, small_pods(4, {"limits": asked}))
    assert found == state, summary


def test_the_names_of_the_teams_namespace_say_nothing_of_another(tmp_path: Path) -> None:
    manifests = small_pods(1, TWO_GPUS)
    job = manifests.jobs()[0]
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "ours"}
    known = cluster(tmp_path, THERE + "QUEUES=ours\nTEAM_NAMESPACE=team-a\n" + LAB.format(1))
    for namespace, state in ((None, "PASS"), ("team-a", "PASS"), ("team-b", "CANNOT TELL")):
        job["metadata"]["namespace"] = namespace
        named = [one for one in fit.check(known, manifests) if "claim" in one.summary or "queue" in one.summary]
        assert [one.state.value for one in named] == [state, state], namespace


def node(devices: dict[str, str], *taints: str) -> dict[str, Any]:
    """Return a node that is ready, with taints such as `pool=ml:NoSchedule`."""
    parts = [re.split("[=:]", one) for one in taints]
    found = [{"key": part[0], "value": part[1], "effect": part[2]} for part in parts]
    room = {"cpu": "64", "memory": "500Gi", "pods": "110", **devices}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": room}
    metadata = {"name": "a", "labels": {"kubernetes.io/arch": "amd64"}}
    return {"metadata": metadata, "spec": {"taints": found}, "status": status}


def facts_of(*nodes: dict[str, Any]) -> str:
    found = machines.facts(filter(machines.usable, nodes), {}, ["us-west-2b"])
    return "".join(f"{name}={value}\n" for name, value in found.items())


def test_nodes_that_differ_in_size_are_not_alike() -> None:
    """k3s gives all of them one instance type."""
    small = node({})
    small["status"]["allocatable"] |= {"cpu": "4", "memory": "8Gi"}
    lines = facts_of(node({}), small, node({})).splitlines()
    assert [line.partition("=")[2].split()[:2] for line in lines] == [["1", "cpu=4000m"], ["2", "cpu=64000m"]]


GPUS = {"nvidia.com/gpu": "8"}
PRESENT, POOL = "nvidia.com/gpu=present:NoSchedule", "pool=ml:NoSchedule"


@pytest.mark.parametrize(
    ("taints", "tolerations", "place", "state", "said"),
    [
        ([PRESENT], [], "", "CANNOT TELL", "MACHINES_1 has the taint nvidia.com/gpu, which some clusters let"),
        ([PRESENT], [], "CLUSTER_NAME=ours\n", "PASS", "fit on"),
        ([PRESENT], [{"key": "nvidia.com/gpu", "operator": "Exists"}], "", "PASS", "fit on"),
        ([POOL], [], "", "FAIL", "do not fit: they do not tolerate pool"),
        ([POOL], [], "CLUSTER_NAME=ours\n", "FAIL", "do not fit: they do not tolerate pool"),
        ([POOL], [{"key": "pool", "value": "ml"}], "", "PASS", "fit on"),
        ([POOL], [{"key": "pool", "value": "web"}], "", "FAIL", "do not tolerate pool"),
        (["node.kubernetes.io/unreachable=:NoExecute"], [{"operator": "Exists"}], "", "CANNOT TELL", "no nodes are"),
    ],
)
def test_pods_must_tolerate_the_taints_that_init_writes(
    taints: list[str], tolerations: list[Any], place: str, state: str, said: str, tmp_path: Path
) -> None:
    """GKE taints nodes with GPUs, and teams the nodes of their pools."""
    facts = place + facts_of(node(GPUS, *taints))
    ((found, summary),) = of_pods(tmp_path, facts, small_pods(2, TWO_GPUS, tolerations=tolerations))
    assert (found, said in summary) == (state, True), summary


@pytest.mark.parametrize(
    ("label", "selected", "state"),
    [
        ("cloud.google.com/gke-accelerator", "here", "PASS"),
        ("cloud.google.com/gke-accelerator", "other", "FAIL"),
        ("kubernetes.azure.com/agentpool", "here", "PASS"),
        ("karpenter.sh/nodepool", "here", "CANNOT TELL"),
    ],
)
def test_clouds_let_pods_with_devices_past_the_taint_of_these(
    label: str, selected: str, state: str, tmp_path: Path
) -> None:
    """GKE and AKS have the admission plugin, and manifests choose nodes there by the labels of their pools."""
    item = node(GPUS, PRESENT)
    item["metadata"]["labels"][label] = "here"
    manifests = small_pods(2, TWO_GPUS, nodeSelector={label: selected})
    ((found, summary),) = of_pods(tmp_path, facts_of(item), manifests)
    assert found == state, summary


@pytest.mark.parametrize(
    ("devices", "taints", "fact"),
    [
        ({"nvidia.com/gpu": "4"}, [], "NODES_G5_12XLARGE=g5.12xlarge 1-1 us-west-2b"),
        ({"nvidia.com/gpu": "4"}, [PRESENT], "NODES_G5_12XLARGE=g5.12xlarge 1-1 us-west-2b"),
        ({}, [], "NODES_G5_12XLARGE=g5.12xlarge 1-1 us-west-2b"),  # without its device plugin
        ({"nvidia.com/gpu": "16"}, [], "nvidia.com/gpu=16"),  # time slices
        ({"nvidia.com/gpu": "3"}, [], "nvidia.com/gpu=3"),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "28"}, [], "nvidia.com/mig-1g.5gb=28"),
        ({"nvidia.com/gpu": "4"}, [POOL], "tainted pool=ml:NoSchedule"),
    ],
)
def test_a_node_of_ec2_is_as_its_type_only_with_whole_devices(
    devices: dict[str, str], taints: list[str], fact: str
) -> None:
    labels = {"node.kubernetes.io/instance-type": "g5.12xlarge", "topology.kubernetes.io/zone": "us-west-2b"}
    item = node(devices, *taints)
    item["metadata"]["labels"] |= labels
    (line,) = facts_of(item).splitlines()
    assert fact in line
    known = "NODES_G5_12XLARGE" if fact.startswith("NODES") else "MACHINES_1"
    assert line.startswith(f"{known}=")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("MACHINES_1=", "nothing is not a number of nodes", "such as MACHINES_1=2"),
        ("MACHINES_LAB=lab 4", "lab is not a number of nodes", "such as MACHINES_LAB=2"),
        ("MACHINES_1=² cpu=1", "² is not a number of nodes", "such as"),
        ("MACHINES_1=2 cpu", "cpu is not NAME=VALUE", "such as"),
        ("MACHINES_1=2 cpu=1 with linux", "linux is not NAME=VALUE", "such as"),
        ("MACHINES_1=2 cpu=1 cpu=2", "cpu is stated twice", None),
        ("MACHINES_1=2 cpus=2 mem=8Gi", "cpus is not a resource of nodes", "did you mean cpu?"),
        ("MACHINES_1=2 mem=8Gi", "mem is not a resource of nodes", "did you mean memory?"),
        ("MACHINES_1=2 gpu=4", "gpu is not a resource of nodes", "did you mean nvidia.com/gpu?"),
        ("MACHINES_1=2 xyz=4", "xyz is not a resource of nodes", "cpu, memory"),
        ("MACHINES_1=2 memory=500GB", "memory=500GB is not an amount", "did you mean 500G?"),
        ("MACHINES_1=2 memory=500gi", "memory=500gi is not an amount", "did you mean 500Gi?"),
        ("MACHINES_1=2 memory=500MB", "memory=500MB is not an amount", "did you mean 500M?"),
        ("MACHINES_1=2 memory=lots", "memory=lots is not an amount", None),
        ("MACHINES_1=2 cpu=1 tainted pool", "pool is not a taint that keeps pods away", "such as pool=ml:NoSchedule"),
        ("MACHINES_1=2 cpu=1 with a=b tainted pool:Never", "pool:Never is not a taint", "such as"),
        ("MACHINES_1=2 cpu=-62", "cpu=-62 is below 0", "did you mean 62?"),
        ("MACHINES_1=2 cpu=1e40", "cpu=1e40 is more than", None),
        ("MACHINES_1=2 cpu=1e9999999", "cpu=1e9999999 is not an amount", None),
    ],
)
def test_a_fact_in_another_form_is_refused(line: str, message: str, hint: str | None, tmp_path: Path) -> None:
    spec = cluster(tmp_path, line)
    with pytest.raises(UserError) as caught:
        machines.read(spec)
    assert caught.value.message.startswith(f"{spec.source}:4: {line}: {message}")
    assert caught.value.code == 2
    assert (caught.value.hint or "").startswith(hint or "")
    assert bool(caught.value.hint) == bool(hint)


def test_a_node_has_any_device_huge_pages_and_labels_without_a_value(tmp_path: Path) -> None:
    line = "MACHINES_1=2 hugepages-1Gi=0 pods=110 ephemeral-storage=1T lab.example/card=4 with lab.example/pool="
    (found,) = machines.read(cluster(tmp_path, line))
    assert sorted(found.room) == ["ephemeral-storage", "hugepages-1Gi", "lab.example/card", "pods"]
    assert found.labels == {"lab.example/pool": ("",)}


def test_a_group_in_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cluster\.env:4: 2 is not a range of nodes"):
        cluster(tmp_path, "NODES_A=m5.large 2")


def test_preflight_prints_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["preflight", P5, "--cluster", "gpu", "--json"]) == 3
    (answer,) = json.loads(capsys.readouterr().out)
    rows = [one for one in answer["verdicts"] if one["rule"] == "cluster"]
    assert {one["verdict"] for one in rows} == {"PASS", "CANNOT TELL"}
    assert cli.invoke(["preflight", "p5/llama-3-1-8b", "--cluster", "gpu", "--nodes", "64"]) == 1
    assert "clusters/gpu/cluster.env:" in capsys.readouterr().out
    assert cli.invoke(["preflight", P5, "--cluster", "gpo"]) == 2
    assert "did you mean gpu?" in capsys.readouterr().err
