"""What Kubeflow Trainer makes of a TrainJob and its runtime."""

from __future__ import annotations

import copy

import pytest

from tests.workload.beds import RUNTIME, Object, bed, of, values
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.simulator import wiring
from tools.workload import kinds, trainjob
from tools.workload.pod import PodsUnknown


@pytest.mark.parametrize(
    ("change", "processes"),
    [
        ({"numProcPerNode": 4}, "4"),
        ({}, "1"),
        ({"resourcesPerNode": {"requests": {"cpu": "3500m"}}}, "4"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "3"}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 0}, "requests": {"cpu": "3"}}}, "3"),
    ],
)
def test_trainer_counts_processes(change: Object, processes: str) -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"] = {"numNodes": 2, **change}
    assert values(of([job, runtime]), 0)["PET_NPROC_PER_NODE"] == processes


def test_trainer_counts_by_the_jobs_own_resources_alone() -> None:
    """torch.go of 2.3.0 does not look at the runtime's resources, which the container keeps, where the job has some."""
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"] = {"numNodes": 2, "resourcesPerNode": {"requests": {"cpu": "2"}}}
    spec = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    found = of([job, runtime])
    assert values(found, 0)["PET_NPROC_PER_NODE"] == "2"
    assert found.ranks()[0].container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_a_variable_that_a_trainjob_changes_keeps_its_place() -> None:
    """$(NAME) refers only to variables above it."""
    job, runtime = bed("TrainJob")
    spec = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    spec["containers"][0]["env"] = [{"name": "A", "value": "0"}, {"name": "B", "value": "$(A)"}]
    assert [one["name"] for one in of([job, runtime]).ranks()[0].container["env"]][:2] == ["A", "B"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"runtimeRef": {"name": "torch-distributed"}},
            "ClusterTrainingRuntime/torch-distributed, which is not in",
        ),
        (
            {"runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}},
            "TrainingRuntime/torch, which is not in",
        ),
    ],
)
def test_a_trainjob_whose_pods_are_unknown(change: Object, reason: str) -> None:
    job, runtime = bed("TrainJob")
    job["spec"] |= change
    workload = of([job, runtime])
    with pytest.raises(PodsUnknown, match=reason.replace("(", r"\(")):
        workload.pods()
    assert wiring.analyse(workload).verdict.state is State.CANNOT_TELL


def test_trainer_injects_nothing_without_spec_trainer() -> None:
    job, runtime = bed("TrainJob")
    del job["spec"]["trainer"]
    runtime["spec"]["mlPolicy"]["numNodes"] = 2
    found = of([job, runtime])
    assert "PET_NNODES" not in values(found, 0)
    verdict = wiring.analyse(found).verdict
    assert (verdict.state, str(verdict.remedy).partition(":")[0]) == (State.FAIL, "add spec.trainer")


@pytest.mark.parametrize(("nodes", "state"), [(1, State.PASS), (2, State.FAIL)])
def test_a_runtime_without_trainers_label_gets_one_pod(nodes: int, state: State) -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"] = {"numNodes": nodes}
    (_, own) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    del own["template"]["metadata"]
    runtime["spec"]["template"]["spec"]["replicatedJobs"] = [own]
    verdict = wiring.analyse(of([job, runtime])).verdict
    assert verdict.state is state
    assert state is State.PASS or "Trainer makes one pod instead of 2" in verdict.summary


def test_trainer_refuses_its_own_variables() -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"]["env"] = [{"name": "PET_NNODES", "value": "3"}]
    assert of([job, runtime]).refused == ["spec.trainer.env: PET_NNODES is reserved for Trainer"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"replicas": 2}, "spec.template.spec.replicatedJobs[1].replicas: must be 1; spec.trainer.numNodes"),
        (
            {"name": "main"},
            "spec.template.spec.replicatedJobs[1].template.spec.template.spec.containers: one must have",
        ),
    ],
)
def test_trainers_webhook_refuses_a_runtime(change: Object, fault: str) -> None:
    job, runtime = bed("TrainJob")
    replicated = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]
    (
        replicated if "replicas" in change else replicated["template"]["spec"]["template"]["spec"]["containers"][0]
    ).update(change)
    (refused,) = of([job, runtime]).refused
    assert refused.startswith(f"ClusterTrainingRuntime/torch: {fault}")


def test_a_runtime_is_judged_with_its_trainjob() -> None:
    alone = kinds.find(Manifests("here", [copy.deepcopy(RUNTIME)]))
    assert [one.reason for one in alone.unknown] == ["no TrainJob of the file uses this runtime"]
    assert kinds.find(Manifests("here", bed("TrainJob"))).unknown == []


POD = {
    "nodeSelector": {"pool": "a"},
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "containers": [{"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
}
TARGETS = {"targetJobs": [{"name": "node"}]}
JOBS = [{"name": "node", "template": {"spec": {"template": {"spec": POD}}}}]


@pytest.mark.parametrize(
    "change",
    [
        {
            "runtimePatches": [
                {"manager": "a/b", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": JOBS}}}}
            ]
        },
        {"podTemplateOverrides": [{**TARGETS, "metadata": {"labels": {"team": "x"}}, "spec": POD}]},
        {"podSpecOverrides": [{**TARGETS, **POD}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_a_trainjob_changes_in_its_runtime_is_in_the_pods(change: Object) -> None:
    """The three fields of Trainer 2.2 and newer, 2.1 and 2.0."""
    job, runtime = bed("TrainJob")
    job["spec"] |= change
    found = of([job, runtime])
    first, *others = found.pods()
    assert "nodeSelector" not in first.spec  # the initializer is not named
    for pod in others:
        assert pod.spec["nodeSelector"] == {"pool": "a"}
        assert [one["name"] for one in pod.spec["volumes"]] == ["data"]
        assert (pod.container["image"], pod.container["command"]) == ("mine:2", ["torchrun", "-m", "trainer"])
        assert pod.container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert wiring.analyse(found).verdict.state is State.PASS
    assert (
        "nodeSelector"
        not in runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    )


def test_a_patch_replaces_named_entries_and_merges_containers() -> None:
    own = {
        "spec": {
            "containers": [{"name": "a", "env": [{"name": "X", "value": "1"}], "image": "i"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "a"}],
        }
    }
    patch = {
        "spec": {
            "containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}, {"name": "b"}],
            "volumes": [{"name": "v", "hostPath": {"path": "/a"}}],
            "tolerations": [{"key": "b"}],
        }
    }
    assert trainjob.patched(own, patch)["spec"] == {
        "containers": [{"name": "a", "env": [{"name": "X", "value": "2"}], "image": "i"}, {"name": "b"}],
        "volumes": [{"name": "v", "hostPath": {"path": "/a"}}],
        "tolerations": [{"key": "b"}],
    }


def test_a_misshapen_patch_is_named() -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["podTemplateOverrides"] = [{"targetJobs": "node", "spec": {"containers": {"name": "node"}}}]
    assert [one.path for one in of([job, runtime]).misshapen] == [
        "spec.podTemplateOverrides[0].targetJobs",
        "spec.podTemplateOverrides[0].spec.containers",
    ]


@pytest.mark.parametrize("metadata", ["labels", True, {"labels": "trainer"}])
def test_metadata_of_a_wrong_type_has_no_label(metadata: object) -> None:
    job, runtime = bed("TrainJob")
    runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["metadata"] = metadata
    assert wiring.analyse(of([job, runtime])).verdict.state is State.FAIL
