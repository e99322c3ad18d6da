"""The operator's rules against tables that were read off its source, version by version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tools.workload import operator_pods
from tools.workload.operator_admission import rejections
from tools.workload.operator_pods import VERSIONS
from tools.workload.pod import ControllerFault, Pod

Job = Callable[..., dict[str, Any]]
Pairs = list[tuple[str, str]]

LABEL = "training.kubeflow.org/"


def injected(pod: Pod, own: int = 2) -> Pairs:
    """Return the variables after the manifest's own, in order."""
    return [(entry["name"], entry["value"]) for entry in pod.container["env"][own:]]


def made(job: dict[str, Any], version: str = operator_pods.LATEST) -> list[Pod]:
    assert rejections(job, version) == []
    return operator_pods.pods(job, version)


MASTER_ONLY: Pairs = [
    ("MASTER_PORT", "23456"),
    ("PET_MASTER_PORT", "23456"),
    ("MASTER_ADDR", "job-master-0"),
    ("PET_MASTER_ADDR", "job-master-0"),
]


@pytest.mark.parametrize("version", ["1.8.0", "1.9.4"])
def test_elastic_workers(make_job: Job, version: str) -> None:
    pods = made(make_job(port=23456), version)
    assert [pod.name for pod in pods] == ["job-worker-0", "job-worker-1"]
    for pod in pods:
        assert injected(pod) == [
            ("PYTHONUNBUFFERED", "1"),
            ("PET_NPROC_PER_NODE", "1"),
            ("PET_RDZV_ENDPOINT", "job-worker-0:23456"),
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_NNODES", "2:2"),
        ]


def test_1_7_gives_workers_no_process_count(make_job: Job) -> None:
    pod = made(make_job(port=23456, spec={"nprocPerNode": "8"}), "1.7.0")[0]
    assert "PET_NPROC_PER_NODE" not in dict(injected(pod))
    assert LABEL + "job-role" not in pod.labels
    newer = made(make_job(port=23456, spec={"nprocPerNode": "8"}), "1.8.0")
    assert dict(injected(newer[0]))["PET_NPROC_PER_NODE"] == "8"
    assert [pod.labels.get(LABEL + "job-role") for pod in newer] == ["master", None]


def test_every_elastic_field_in_its_place(make_job: Job) -> None:
    elastic = {
        "minReplicas": 1,
        "maxReplicas": 4,
        "maxRestarts": 0,
        "nProcPerNode": 3,
        "rdzvId": "id",
        "rdzvBackend": "etcd",
        "rdzvHost": "host",
        "rdzvPort": 1,
        "rdzvConf": [{"key": "a", "value": "b"}, {"key": "timeout", "value": "9"}],
        "standalone": True,
    }
    pod = made(make_job(spec={"elasticPolicy": elastic, "nprocPerNode": None}))[0]
    assert injected(pod) == [
        ("PYTHONUNBUFFERED", "1"),
        ("PET_RDZV_ENDPOINT", "host:1"),
        ("PET_RDZV_BACKEND", "etcd"),
        ("PET_NNODES", "1:4"),
        ("PET_MAX_RESTARTS", "0"),
        ("PET_NPROC_PER_NODE", "3"),
        ("PET_RDZV_ID", "id"),
        ("PET_RDZV_CONF", "a=b,timeout=9"),
        ("PET_STANDALONE", ""),
    ]


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [
        ({}, "2:2"),
        ({"minReplicas": 1}, "1:1"),
        ({"maxReplicas": 5}, "5:5"),
        ({"minReplicas": 1, "maxReplicas": 5}, "1:5"),
    ],
)
def test_missing_bounds_take_the_other_or_the_replicas(make_job: Job, policy: dict[str, int], nodes: str) -> None:
    assert dict(injected(made(make_job(spec={"elasticPolicy": policy}))[0]))["PET_NNODES"] == nodes


@pytest.mark.parametrize(
    ("nproc", "world"), [("8", "24"), ("auto", "3"), ("gpu", "3"), ("+2", "6"), ("2.0", "3"), (None, "3")]
)
def test_master_and_workers(make_job: Job, nproc: str | None, world: str) -> None:
    pods = made(make_job(pods=3, master=True, port=23456, spec={"nprocPerNode": nproc}))
    assert [pod.name for pod in pods] == ["job-master-0", "job-worker-0", "job-worker-1"]
    for rank, pod in enumerate(pods):
        assert injected(pod) == [
            ("PYTHONUNBUFFERED", "1"),
            *MASTER_ONLY,
            ("WORLD_SIZE", world),
            ("RANK", str(rank)),
            ("PET_NODE_RANK", str(rank)),
            ("PET_NPROC_PER_NODE", nproc or "auto"),
            ("PET_NNODES", "3"),
        ]
    assert [pod.labels.get(LABEL + "job-role") for pod in pods] == ["master", None, None]
    assert [len(pod.spec.get("initContainers") or []) for pod in pods] == [0, 1, 1]
    assert "nslookup job-master-0" in pods[1].spec["initContainers"][0]["command"][2]


def test_1_7_orders_a_masters_variables_differently(make_job: Job) -> None:
    pod = made(make_job(master=True, port=23456), "1.7.0")[1]
    assert injected(pod)[5:] == [
        ("WORLD_SIZE", "2"),
        ("RANK", "1"),
        ("PET_NPROC_PER_NODE", "1"),
        ("PET_NODE_RANK", "1"),
        ("PET_NNODES", "2"),
    ]


def test_labels_annotations_restart_policy_and_other_containers(make_job: Job) -> None:
    job = make_job(port=23456)
    replica = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    replica["template"]["metadata"] = {
        "labels": {"team": "a", LABEL + "job-name": "mine"},
        "annotations": {"note": "b"},
    }
    replica["template"]["spec"].update(restartPolicy="Always", initContainers=[{"name": "own", "image": "i"}])
    replica["template"]["spec"]["containers"].append({"name": "side", "image": "i"})
    replica["restartPolicy"] = "ExitCode"
    pod = made(job)[1]
    assert pod.labels == {
        "team": "a",
        LABEL + "operator-name": "pytorchjob-controller",
        LABEL + "job-name": "job",
        LABEL + "replica-type": "worker",
        LABEL + "replica-index": "1",
    }
    assert pod.annotations == {"note": "b"}
    assert (pod.spec["restartPolicy"], pod.restart_policy) == ("Never", "ExitCode")
    assert pod.spec["containers"][1]["env"] == pod.container["env"][2:]
    assert "env" not in pod.spec["initContainers"][0]


def test_the_default_port_goes_to_the_container_named_pytorch(make_job: Job) -> None:
    job = make_job()
    containers = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    containers[0]["ports"] = [{"name": "web", "containerPort": 80}]
    containers.insert(0, {"name": "side", "image": "i"})
    pod = made(job)[0]
    assert pod.container["ports"] == [
        {"name": "web", "containerPort": 80},
        {"name": "pytorchjob-port", "containerPort": 23456},
    ]
    assert "ports" not in pod.spec["containers"][0] or pod.spec["containers"][0]["ports"] == []


def test_the_given_object_is_left_as_it_is(make_job: Job) -> None:
    job, same = make_job(port=1), make_job(port=1)
    operator_pods.pods(job)
    assert job == same


def test_replica_types_in_any_case_before_the_webhook(make_job: Job) -> None:
    job = make_job(port=23456)
    job["spec"]["pytorchReplicaSpecs"]["worker"] = job["spec"]["pytorchReplicaSpecs"].pop("Worker")
    assert [pod.name for pod in made(job, "1.7.0")] == ["job-worker-0", "job-worker-1"]
    assert "must be Master or Worker" in rejections(job, "1.8.0")[0]


def test_suspended_and_foreign_jobs_have_no_pods(make_job: Job) -> None:
    assert made(make_job(spec={"runPolicy": {"suspend": True}})) == []
    foreign = make_job(spec={"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}})
    assert made(foreign) == []
    assert len(made(foreign, "1.8.1")) == 2


def test_where_the_operator_itself_stops(make_job: Job) -> None:
    only_master = make_job(pods=1, master=True, spec={"elasticPolicy": {}})
    del only_master["spec"]["pytorchReplicaSpecs"]["Worker"]
    for version in ("1.7.0", "1.8.1"):
        assert rejections(only_master, version) == []
        with pytest.raises(ControllerFault, match="elasticPolicy needs a Worker"):
            operator_pods.pods(only_master, version)
    assert "must be configured if elastic policy is used" in rejections(only_master, "1.9.0")[0]
    with pytest.raises(ControllerFault, match="empty list"):
        operator_pods.pods(make_job(spec={"elasticPolicy": {"rdzvConf": []}}))
    with pytest.raises(ControllerFault, match="creates and deletes pod 0"):
        operator_pods.pods(make_job(pods=0))
    both = make_job(master=True, spec={"elasticPolicy": {"nProcPerNode": 2}, "nprocPerNode": None})
    with pytest.raises(ControllerFault, match=r"1\.7\.0 fails"):
        operator_pods.pods(both, "1.7.0")


@pytest.mark.parametrize(
    ("change", "message", "versions"),
    [
        ({"spec": {"nprocPerNode": 8}}, "spec.nprocPerNode: must be a string in quotes, not 8", VERSIONS),
        ({"spec": {"elasticPolicy": {"maxRestarts": "3"}}}, "must be an integer, not '3'", VERSIONS),
        ({"spec": {"elasticPolicy": {"minReplicas": True}}}, "must be an integer, not True", VERSIONS),
        (
            {"spec": {"elasticPolicy": {"nProcPerNode": 1}}},
            "must not be used with spec.nprocPerNode",
            VERSIONS,
        ),
        ({"name": "1job"}, "metadata.name: '1job' must be", VERSIONS),
        ({"name": "a" * 64}, "at most 63", VERSIONS),
        ({"pods": 0}, "replicas: must be at least 1", VERSIONS[3:]),
        ({"spec": {"runPolicy": {"managedBy": "me"}}}, "'me' must be one of", VERSIONS[3:]),
    ],
)
def test_what_is_refused_and_since_when(
    make_job: Job, change: dict[str, Any], message: str, versions: tuple[str, ...]
) -> None:
    for version in VERSIONS:
        refused = rejections(make_job(**change), version)
        assert bool(refused) == (version in versions), version
        assert all(message in text for text in refused)


def test_a_master_must_be_one_and_written_since_1_8(make_job: Job) -> None:
    job = make_job(master=True)
    del job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"]
    assert rejections(job, "1.7.0") == []
    assert rejections(job, "1.8.0") == ["spec.pytorchReplicaSpecs[Master].replicas: must be 1"]
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    assert rejections(job, "1.7.0") == ["spec.pytorchReplicaSpecs[Master].replicas: must be 1"]


def test_containers_are_checked(make_job: Job) -> None:
    job = make_job()
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "N", "value": 1})
    assert "env[2].value: must be a string in quotes, not 1" in rejections(job, "1.9.4")[0]
    container["env"].pop()
    container.update(name="trainer", image="")
    refused = rejections(job, "1.9.4")
    assert "containers[0].image: must be specified" in refused[0]
    assert "one must have the name pytorch" in refused[1]
