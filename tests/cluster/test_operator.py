"""The rules of `yard wiring` come from the operator's source. Here the operator itself checks them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.kube import Kube
from tools.kube.manifests import name_of
from tools.workload import operator_pods
from tools.workload.operator_admission import rejections

NAMESPACE = "t-operator"
JOBS = 120
SEED = 20261121
LONGEST = 63 - len("-worker-0")


def generated(dice: random.Random, number: int) -> Object:
    """Return a PyTorchJob of any shape that the operator admits."""
    masters, workers = dice.choice([(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 3)])
    elastic = workers > 0 and dice.random() < 0.6
    spec: Object = {
        "runPolicy": {"cleanPodPolicy": dice.choice(["None", "Running", "All"])},
        "pytorchReplicaSpecs": {},
    }
    for kind, count in (("Master", masters), ("Worker", workers)):
        if count:
            spec["pytorchReplicaSpecs"][kind] = _replica(dice, kind, count)
    if elastic:
        spec["elasticPolicy"] = _elastic(dice, workers)
    if "nProcPerNode" not in spec.get("elasticPolicy", {}):
        nproc = dice.choice([None, "1", "8", "auto", "gpu", "cpu"])
        spec |= {"nprocPerNode": nproc} if nproc else {}
    name = f"j{number}"
    if dice.random() < 0.3:
        name += "-" + "x" * (LONGEST - len(name) - 1)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def _replica(dice: random.Random, kind: str, count: int) -> Object:
    container: Object = {"name": "pytorch", "image": "localhost/none:1", "command": ["torchrun"]}
    if dice.random() < 0.5:
        container["env"] = [{"name": "OWN", "value": "1"}, {"name": "PET_NNODES", "value": "9"}]
    ports = [{"name": "other", "containerPort": 8080}] if dice.random() < 0.4 else []
    if dice.random() < 0.4:
        ports.append({"name": "pytorchjob-port", "containerPort": dice.choice([23456, 29400, 12345])})
    container |= {"ports": ports} if ports else {}
    containers = [container]
    if dice.random() < 0.25:
        containers.insert(dice.choice([0, 1]), {"name": "side", "image": "localhost/none:1"})
    template: Object = {"spec": {"containers": containers}}
    if dice.random() < 0.3:
        template["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    replica: Object = {"replicas": count, "template": template}
    policy = dice.choice([None, "OnFailure", "Always", "Never", "ExitCode"])
    return replica | ({"restartPolicy": policy} if policy else {})


def _elastic(dice: random.Random, workers: int) -> Object:
    choices: dict[str, list[Any]] = {
        "minReplicas": [None, 1, workers],
        "maxReplicas": [None, workers, workers + 2],
        "maxRestarts": [None, 0, 3],
        "rdzvBackend": [None, "c10d", "etcd-v2"],
        "rdzvHost": [None, None, "store.example"],
        "rdzvPort": [None, None, 29500],
        "rdzvId": [None, "run-7"],
        "nProcPerNode": [None, None, 2],
        "rdzvConf": [None, [{"key": "timeout", "value": "900"}, {"key": "a", "value": "b"}]],
        "standalone": [None, None, True],
    }
    drawn = {key: dice.choice(values) for key, values in choices.items()}
    return {key: value for key, value in drawn.items() if value is not None} or {"rdzvBackend": "c10d"}


@pytest.fixture(scope="module")
def jobs(kube: Kube) -> Iterator[list[Object]]:
    """The generated jobs, applied, and all their pods and services made by the operator."""
    dice = random.Random(SEED)
    made = [generated(dice, number) for number in range(JOBS)]
    assert [rejections(job, operator_pods.LATEST) for job in made] == [[]] * JOBS
    kube.make_namespace(NAMESPACE)
    kube.put(made, NAMESPACE)
    names = {pod.name for job in made for pod in operator_pods.pods(job)}
    for kind in ("pods", "services"):
        kube.wait(
            f"{len(names)} {kind}",
            lambda kind=kind: {name_of(one) for one in kube.list(kind, NAMESPACE)} >= names,  # type: ignore[misc]
            300,
        )
    yield made
    kube.delete_namespace(NAMESPACE)


def test_the_jobs_are_of_every_shape(jobs: list[Object]) -> None:
    """Control: the random jobs cover everything that is compared."""
    assert len(jobs) >= 100
    specs = [job["spec"] for job in jobs]
    shapes = {tuple(sorted((k, r["replicas"]) for k, r in s["pytorchReplicaSpecs"].items())) for s in specs}
    assert len(shapes) == 6
    elastic = [spec["elasticPolicy"] for spec in specs if "elasticPolicy" in spec]
    assert {key for policy in elastic for key in policy} >= {
        "rdzvConf",
        "standalone",
        "rdzvHost",
        "nProcPerNode",
    }
    assert {spec.get("nprocPerNode") for spec in specs} == {None, "1", "8", "auto", "gpu", "cpu"}
    assert max(len(name_of(job)) for job in jobs) == LONGEST


def test_pods_are_what_the_rules_say(kube: Kube, jobs: list[Object]) -> None:
    real = {name_of(pod): pod for pod in kube.list("pods", NAMESPACE)}
    compared = 0
    for job in jobs:
        for pod in operator_pods.pods(job):
            found = real[pod.name]
            assert found["metadata"]["labels"] == pod.labels, pod.name
            assert (found["metadata"].get("annotations") or {}).items() >= pod.annotations.items()
            assert found["spec"]["restartPolicy"] == pod.spec["restartPolicy"], pod.name
            for part in ("containers", "initContainers"):
                compared += _compare(found["spec"].get(part) or [], pod.spec.get(part) or [], pod.name)
    assert compared > 200


def _compare(found: list[Object], expected: list[Object], name: str) -> int:
    """Compare containers in order: names, images, commands and the whole environment."""
    assert [one["name"] for one in found] == [one["name"] for one in expected], name
    for real, ruled in zip(found, expected, strict=True):
        environment = [(one["name"], one.get("value", "")) for one in real.get("env") or []]
        assert environment == [(one["name"], one["value"]) for one in ruled.get("env") or []], name
        assert real["image"] == ruled["image"], name
        assert real.get("command") == ruled.get("command"), name
    return len(found)
