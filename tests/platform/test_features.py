"""Feature Components on one cell of every hardware: what each adds to the job, and what stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parts import renderers
from tests.platform.conftest import of_kind
from tools.cells import matrix
from tools.cells.knobs import Knobs, applied
from tools.core import repo
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import operator_admission
from tools.workload.pytorchjob import PyTorchJob

Object = dict[str, Any]
Parse = Callable[[str], list[Object]]

NAMES = sorted(path.name for path in (repo.root() / "overlays/feature").iterdir() if path.is_dir())
# They change the kind or the order of lists, or are for some cells only, and have tests of their own.
OTHERS = ("hyperpod-job", "trainjob", "agent", "precompile", "stream-c4")
SMALLEST = "cpu/llama-tiny"
# The first cell of each hardware, and the smallest.
CELLS = sorted({SMALLEST, *{cell.hardware: cell.name for cell in reversed(matrix.load(repo.root()))}.values()})


def pod_of(job: Object) -> Object:
    spec: Object = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return spec


def environment(pod: Object) -> dict[str, Any]:
    """Return the variables of the one container. Fails where a name occurs twice."""
    entries = pod["containers"][0]["env"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {entry["name"]: entry.get("value") for entry in entries}


def test_cells_of_every_hardware_are_tested() -> None:
    assert len(CELLS) >= 2
    hardware = {path.name for path in (repo.root() / "overlays/hardware").iterdir()}
    assert hardware == {cell.split("/")[0] for cell in CELLS}
    wanted = "kueue volcano hyperpod hyperpod-job spot profile s3-data local-nvme agent precompile stream-c4"
    wanted += " trainjob monitoring local-checkpoints"
    assert set(NAMES) == set(wanted.split())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("feature", [name for name in NAMES if name not in OTHERS])
def test_a_feature_adds_and_takes_nothing_away(
    feature: str,
    cell: str,
    above: Callable[..., list[Object]],
    loose: Callable[[Object], list[str]],
    faults: Callable[[Object], list[str]],
) -> None:
    plain = of_kind(above(cell), "PyTorchJob")
    made = above(cell, f"overlays/feature/{feature}")
    job = of_kind(made, "PyTorchJob")
    assert job != plain
    assert lost(plain, job) <= CHANGED.get(feature, set())
    assert loose(pod_of(job)) == []
    assert [fault for one in made for fault in faults(one)] == []
    assert operator_admission.rejections(job, "1.9.4") == []
    assert wiring.analyse(PyTorchJob(job, manifests=Manifests(cell, made))).verdict.state is State.PASS
    assert evaluate(Manifests(cell, made)).of(State.FAIL) == []
    environment(pod_of(job))


# What a feature may change, not only add.
CHANGED = {
    "spot": {"spec.runPolicy.backoffLimit"},
    "local-nvme": {"spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env[5].value"},
    # In place of the claim's own directory.
    "s3-data": {
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].volumeMounts[3].name",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].volumeMounts[3].subPath",
    },
}


def lost(before: Any, after: Any, path: str = "") -> set[str]:
    """Return the paths in `before` that are missing or different in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        parts = [lost(value, after.get(key), f"{path}.{key}".lstrip(".")) for key, value in before.items()]
        return set().union(*parts)
    if isinstance(before, list) and isinstance(after, list):
        padded = after + [None] * len(before)
        parts = [lost(value, padded[index], f"{path}[{index}]") for index, value in enumerate(before)]
        return set().union(*parts)
    return set() if before == after else {path}


def test_lost_sees_what_is_missing(above: Callable[..., list[Object]]) -> None:
    """Control: a job without its image."""
    job = of_kind(above(SMALLEST), "PyTorchJob")
    broken = json.loads(json.dumps(job))
    del pod_of(broken)["containers"][0]["image"]
    assert lost(job, broken) == {"spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].image"}


@pytest.mark.parametrize("cell", CELLS)
def test_kueue_has_the_queue_and_leaves_suspend_alone(cell: str, above: Callable[..., list[Object]]) -> None:
    """Flux does not change a field that git does not set, so only Kueue suspends and resumes."""
    job = of_kind(above(cell, "overlays/feature/kueue"), "PyTorchJob")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue("kueue", "LocalQueue")
    assert "suspend" not in job["spec"]["runPolicy"]


@pytest.mark.parametrize("cell", CELLS)
def test_volcano_waits_for_all_pods(cell: str, above: Callable[..., list[Object]]) -> None:
    """Without minAvailable, the operator uses all replicas."""
    job = of_kind(above(cell, "overlays/feature/volcano"), "PyTorchJob")
    assert job["spec"]["runPolicy"]["schedulingPolicy"] == {"queue": queue("volcano", "Queue")}
    assert "schedulerName" not in pod_of(job)


def queue(plugin: str, kind: str) -> str:
    """Return the name of the queue that base/plugins has."""
    for path in (repo.root() / "base/plugins" / plugin / "queue").glob("queue*.yaml"):
        for document in path.read_text(encoding="utf-8").split("---\n"):
            if f"kind: {kind}\n" in document:
                return document.split("  name: ")[1].splitlines()[0]
    raise AssertionError(f"no {kind} in {plugin}")


@pytest.mark.parametrize("cell", CELLS)
def test_hyperpod_resumes_by_strings(cell: str, above: Callable[..., list[Object]]) -> None:
    job = of_kind(above(cell, "overlays/feature/hyperpod"), "PyTorchJob")
    assert job["metadata"]["annotations"] == {
        "sagemaker.amazonaws.com/enable-job-auto-resume": "true",
        "sagemaker.amazonaws.com/job-max-retry-count": "2",
    }
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    assert pod_of(job)["nodeSelector"] == {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    assert operator_admission.rejections(job, "1.8.1") == []


@pytest.mark.parametrize("cell", CELLS)
def test_spot_prefers_and_still_requires_the_machine(cell: str, above: Callable[..., list[Object]]) -> None:
    plain = pod_of(of_kind(above(cell), "PyTorchJob"))
    pod = pod_of(of_kind(above(cell, "overlays/feature/spot"), "PyTorchJob"))
    affinity = pod["affinity"]["nodeAffinity"]
    wanted = [
        one["preference"]["matchExpressions"][0] for one in affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    ]
    assert {(one["key"], *one["values"]) for one in wanted} == {
        ("karpenter.sh/capacity-type", "spot"),
        ("eks.amazonaws.com/capacityType", "SPOT"),
    }
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert affinity.get(required) == plain.get("affinity", {}).get("nodeAffinity", {}).get(required)
    assert pod["terminationGracePeriodSeconds"] <= 120  # the notice
    assert int(environment(pod)["PET_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("cell", CELLS)
def test_profile_writes_to_the_run(cell: str, above: Callable[..., list[Object]]) -> None:
    pod = pod_of(of_kind(above(cell, "overlays/feature/profile"), "PyTorchJob"))
    names = [entry["name"] for entry in pod["containers"][0]["env"]]
    assert names.index("TRAINYARD_RUN") < names.index("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    assert environment(pod)["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"].startswith("$(TRAINYARD_RUN)/")


@pytest.mark.parametrize("cell", CELLS)
def test_data_and_scratch_are_mounted(cell: str, above: Callable[..., list[Object]]) -> None:
    features = ("overlays/feature/s3-data", "overlays/feature/local-nvme")
    pod = pod_of(of_kind(above(cell, *features), "PyTorchJob"))
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert mounts["s3"]["readOnly"] is volumes["s3"]["persistentVolumeClaim"]["readOnly"] is True
    assert mounts["s3"]["mountPath"] == "/shared/text"
    claim = volumes["nvme"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "trainyard-local-nvme"
    variables = environment(pod)
    assert variables["TORCHINDUCTOR_CACHE_DIR"].startswith(mounts["nvme"]["mountPath"])
    assert variables["TMPDIR"] == mounts["nvme"]["mountPath"]


def test_s3_is_mounted_where_models_look() -> None:
    models = (repo.root() / "overlays/model").glob("*/model.yaml")
    assert any("source: /shared/text " in path.read_text(encoding="utf-8") for path in models)


def test_all_features_of_one_job_go_together(
    above: Callable[..., list[Object]], faults: Callable[[Object], list[str]]
) -> None:
    some = [f"overlays/feature/{name}" for name in ("kueue", "spot", "profile", "monitoring", "s3-data", "local-nvme")]
    for cell in CELLS:
        made = above(cell, *some, prefix="we-")
        job = of_kind(made, "PyTorchJob")
        assert [fault for one in made for fault in faults(one)] == []
        assert operator_admission.rejections(job, "1.9.4") == []
        assert job["metadata"]["name"].startswith("we-")


@pytest.mark.parametrize("cell", CELLS)
def test_hyperpod_job_is_the_same_pod(
    cell: str, above: Callable[..., list[Object]], loose: Callable[[Object], list[str]]
) -> None:
    """HyperPod's kind has the same image, resources and volumes, but its own launcher and labels."""
    plain = of_kind(above(cell, prefix="we-"), "PyTorchJob")
    made = above(cell, "overlays/feature/hyperpod-job", prefix="we-")
    job = of_kind(made, "HyperPodPyTorchJob")
    assert not [one for one in made if one["kind"] == "PyTorchJob"]
    assert job["apiVersion"] == "sagemaker.amazonaws.com/v1"
    name = job["metadata"]["name"]
    assert name == plain["metadata"]["name"]
    (replica,) = job["spec"]["replicaSpecs"]
    assert replica["replicas"] == plain["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    pod, before = replica["template"]["spec"], pod_of(plain)
    assert evaluate(Manifests(cell, made)).of(State.FAIL) == []
    assert loose(pod) == []
    assert pod["volumes"] == before["volumes"]
    assert pod["serviceAccountName"] == before["serviceAccountName"]
    assert pod.get("affinity") == before.get("affinity")
    (container,), (own,) = pod["containers"], before["containers"]
    assert all(container[key] == own[key] for key in ("image", "resources", "volumeMounts"))
    assert container["command"] == ["hyperpodrun"]
    assert container["args"][-len(own["args"]) :] == own["args"]
    variables = environment(pod)
    assert variables["PET_NNODES"] == str(replica["replicas"])
    assert variables["PET_NPROC_PER_NODE"] == job["spec"]["nprocPerNode"]
    assert f"--shutdown-timeout={variables['PET_SHUTDOWN_TIMEOUT']}" in container["args"]
    field = container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    policy = of_kind(made, "NetworkPolicy")["spec"]
    assert field == "metadata.labels['HPJob']"
    assert policy["podSelector"]["matchLabels"] == {"HPJob": name}
    assert policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == {"HPJob": name}
    assert policy["egress"][0]["to"][0]["podSelector"]["matchLabels"] == {"HPJob": name}
    assert {one["containerPort"] for one in container["ports"]} == {
        one["port"] for one in policy["ingress"][1]["ports"]
    }


@pytest.mark.long
@pytest.mark.timeout(900)
def test_components_are_the_same_on_the_oldest_and_newest_kustomize(
    directory: Callable[..., Path], above: Callable[..., list[Object]], objects: Parse
) -> None:
    """The Components depend on behaviour that kustomize does not document."""
    programs = list(map(renderers.built, renderers.VERSIONS))
    for component in (
        "overlays/feature/hyperpod-job",
        "overlays/feature/trainjob",
        "base/services/prepare",
        "base/services/nccl-test",
    ):
        made = above(SMALLEST, component, prefix="we-")
        mine = directory(SMALLEST, component, prefix="we-")
        for program in programs:
            done = subprocess.run([program, "build", mine], capture_output=True, text=True, timeout=180, check=True)
            assert objects(done.stdout) == made


def test_monitoring_admits_one_namespace_to_one_port(above: Callable[..., list[Object]], objects: Parse) -> None:
    plain, made = above(SMALLEST), above(SMALLEST, "overlays/feature/monitoring")
    (container,) = pod_of(of_kind(made, "PyTorchJob"))["containers"]
    (port,) = (port for port in container["ports"] if port["name"] == "trainyard")
    before, after = (of_kind(them, "NetworkPolicy")["spec"]["ingress"] for them in (plain, made))
    added = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert after == [*before, {"from": [added], "ports": [{"protocol": "TCP", "port": port["containerPort"]}]}]
    variables = environment(pod_of(of_kind(made, "PyTorchJob")))
    assert variables["TRAINYARD_METRICS"] == f"$(POD_IP):{port['containerPort']}"
    (monitor,) = objects((repo.root() / "base/plugins/monitoring/podmonitor.yaml").read_text(encoding="utf-8"))
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]


@pytest.mark.parametrize("kind", [(), ("trainjob",)], ids=["PyTorchJob", "TrainJob"])
def test_local_checkpoints_have_a_volume_of_each_pods_own(
    above: Callable[..., list[Object]], kind: tuple[str, ...]
) -> None:
    """Control: without the feature, the same keys fail because the root file system is read-only."""
    keys = ("checkpoint.tiers.local.every=10", "checkpoint.tiers.local.path=/local")
    places = {}
    for features in ((), ("local-checkpoints",)):
        knobs = Knobs(features=(*features, *kind), settings=keys)
        places[features] = evaluate(applied(Manifests(SMALLEST, above(SMALLEST)), knobs))
    assert {one.details["rule"] for one in places[()].of(State.FAIL)} == {"config"}
    assert places["local-checkpoints",].of(State.FAIL) == []
    passed = {one.details["rule"] for one in places["local-checkpoints",].of(State.PASS)}
    assert "checkpoint-places" in passed
