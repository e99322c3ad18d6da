"""`yard plan show -f`: jobs of any kind, and pods of any size."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tools import cli
from tools.plan.outlook import KEYS


def test_a_gpu_of_an_unnamed_machine_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An H20 or an MI300X on premises: the pods' host memory is not the card's."""
    assert cli.invoke(["render", "p5/llama-3-1-8b"]) == 0
    path, text = tmp_path / "job.yaml", capsys.readouterr().out
    path.write_text(
        text.replace("p5en.48xlarge", "own-machine").replace("nvidia.com/gpu", "amd.com/gpu"), encoding="utf-8"
    )
    assert cli.invoke(["plan", "show", "-f", str(path)]) == 3
    shown = capsys.readouterr().out
    assert "of unknown GiB a GPU\n" in shown
    assert "unknown: own-machine, a type of machine that tools/facts/instances.yaml does not have" in shown


PODS = yaml.safe_load("""
spec:
  nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}
  containers: [{name: a, image: b, command: [python, train.py], resources: {limits: {nvidia.com/gpu: 8}}}]
""")
RANKS = copy.deepcopy(PODS)
RANKS["spec"]["containers"][0]["command"] = ["torchrun", "train.py"]
LAUNCHER = {"spec": {"containers": [{"name": "l", "image": "b", "command": ["mpirun", "python", "train.py"]}]}}
MPI = {"Launcher": {"replicas": 1, "template": LAUNCHER}, "Worker": {"replicas": 4, "template": PODS}}
GROUP = {"size": 2, "leaderTemplate": PODS, "workerTemplate": PODS}
JOB = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": RANKS}
KINDS = {
    "kubeflow.org/v1 PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": RANKS}}},
    "batch/v1 Job": JOB,
    "jobset.x-k8s.io/v1alpha2 JobSet": {"replicatedJobs": [{"name": "w", "template": {"spec": JOB}}]},
    "batch.volcano.sh/v1alpha1 Job": {"tasks": [{"name": "w", "replicas": 4, "template": RANKS}]},
    "kubeflow.org/v2beta1 MPIJob": {"mpiReplicaSpecs": MPI},
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": {"replicas": 2, "leaderWorkerTemplate": GROUP},
    "ray.io/v1 RayJob": {"rayClusterSpec": {"workerGroupSpecs": [{"replicas": 4, "template": PODS}]}},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_can_be_said_of_a_job_without_a_known_model(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four machines of any kind of job: their number, GPUs, price, network; the rest is unknown, with what to do."""
    version, _, name = kind.partition(" ")
    item = {"apiVersion": version, "kind": name, "metadata": {"name": "own"}, "spec": KINDS[kind]}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(path)]) == 3
    shown = capsys.readouterr().out
    assert "4 x p5.48xlarge, 32 GPUs" in shown
    assert "unknown of 80.0 GiB a GPU" in shown
    assert "an hour (2026-07)" in shown
    assert "EFA, 3,200 Gbit/s a node" in shown
    assert "priced as" not in shown
    assert "yard job metrics" in shown
    assert cli.invoke(["plan", "show", "-f", str(path), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert tuple(told) == KEYS
    assert (told["gpus"], told["memory"]["needed"], told["hours"]) == (32, None, None)
    assert told["usd_per_hour"]["on demand"] > 0


MIG, SLICE = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"nvidia.com/gpu": 4}, 3, "4 x p5.48xlarge, 16 GPUs, 4 of the 8 of each"),
        ({"nvidia.com/gpu": 4}, 3, "4 whole machines; pods that ask for a part of one may share it"),
        ({SLICE: 2}, 3, "4 whole machines; pods that ask for a part of one may share it"),
        ({"nvidia.com/gpu": 16}, 1, "a pod asks for 16 nvidia.com/gpu, and p5.48xlarge has 8"),
        ({"amd.com/gpu": 8}, 1, "a pod asks for 8 amd.com/gpu, and p5.48xlarge has 0"),
        ({"nvidia.com/gpu": "0.5"}, 2, "nvidia.com/gpu: '0.5' is not a number of devices"),
        ({"nvidia.com/gpu": -8}, 2, "nvidia.com/gpu: -8 is not a number of devices"),
        ({MIG: 2}, 3, f"unknown: {MIG} is a part of a card"),
        ({SLICE: 2}, 3, f"unknown: {SLICE} is a part of a card"),
        ({}, 3, "unknown: its pods ask for no H100 of p5.48xlarge"),
    ],
)
def test_devices_that_are_not_whole_machines(
    asked: dict[str, object], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = copy.deepcopy(JOB)
    spec["template"]["spec"]["containers"][0]["resources"]["limits"] = asked
    item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "own"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml")]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_processes_that_share_a_card_have_a_part_of_its_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["render", "overlays/p5/llama-3-1-8b"]) == 0
    text = capsys.readouterr().out
    told = []
    for processes in (4, 8, 16):
        more = text.replace('nprocPerNode: "8"', f'nprocPerNode: "{processes}"')
        (tmp_path / "job.yaml").write_text(more.replace("micro_batch_size: 2", "micro_batch_size: 1"))
        told.append(cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml"), "--json"]))
        plan = json.loads(capsys.readouterr().out)
        told += [plan["memory"]["there"] // 2**20, plan["unknown"]]
    whole, why = told[1], "unknown: 16 processes share 8 GPUs, whose speed was not measured"
    assert told == [0, whole, None, 0, whole, None, 3, whole // 2, why]


NODES = {"numNodes": 4, "command": ["torchrun", "a.py"], "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
NUMBERED = KINDS | {
    "apps/v1 Deployment": {"replicas": 4, "template": RANKS},
    "trainer.kubeflow.org/v1alpha1 TrainJob": {"runtimeRef": {"name": "torch-distributed"}, "trainer": NODES},
}
NUMBER = {
    "PyTorchJob": "pytorchReplicaSpecs.Worker.replicas",
    "JobSet": "replicatedJobs[0].template.spec.parallelism",
    "MPIJob": "mpiReplicaSpecs.Worker.replicas",
    "LeaderWorkerSet": "leaderWorkerTemplate.size",
    "RayJob": "rayClusterSpec.workerGroupSpecs[0].replicas",
    "Deployment": "replicas",
    "TrainJob": "trainer.numNodes",
}


@pytest.mark.parametrize("count", [-3, 0, 2])
@pytest.mark.parametrize("kind", [one for one in sorted(NUMBERED) if one.partition(" ")[2] in NUMBER])
def test_a_number_of_pods_below_one_is_refused(
    kind: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names file, object, field and value; two pods are planned."""
    version, _, name = kind.partition(" ")
    spec = copy.deepcopy(NUMBERED[kind])
    part: Any = spec
    *way, last = re.findall(r"\w+", NUMBER[name])
    for key in way:
        part = part[int(key) if key.isdigit() else key]
    part[last] = count
    path = tmp_path / "job.yaml"
    item = {"apiVersion": version, "kind": name, "metadata": {"name": "own"}, "spec": spec}
    path.write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(path)]) == (3 if count > 0 else 2)
    shown = capsys.readouterr()
    if count > 0:
        assert re.search(rf"machines +{count * (2 if name == 'LeaderWorkerSet' else 1)} x ", shown.out)
    else:
        assert shown.err.startswith(f"error: {path}: {name}/own: spec.{NUMBER[name]}: {count} ")
        assert "1" in shown.err.partition("hint: ")[2]


def test_one_of_two_groups_may_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is every size a number of pods."""
    groups = [{"replicas": count, "template": PODS} for count in (0, 3)]
    item = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "own"}}
    item["spec"] = {"rayClusterSpec": {"workerGroupSpecs": groups}, "cache": {"size": -1}}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml")]) == 3
    assert "3 x p5.48xlarge, 24 GPUs" in capsys.readouterr().out


def test_pods_of_different_size_are_not_planned_as_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = copy.deepcopy(RANKS)
    small["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 4}
    replicas = {"Master": {"replicas": 1, "template": small}, "Worker": {"replicas": 1, "template": RANKS}}
    item = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "own"}}
    item["spec"] = {"pytorchReplicaSpecs": replicas}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml")]) == 3
    assert "its pods ask for 4 and 8 devices, and equal pods are planned" in capsys.readouterr().out


def test_a_trainjob_without_its_runtime_says_what_it_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = {"numNodes": 2, "command": ["torchrun", "a.py"], "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    item: dict[str, object] = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    item["metadata"] = {"name": "own"}
    item["spec"] = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml"), "--nodes", "3"]) == 3
    shown = capsys.readouterr().out
    assert "3 x pod, 24 GPUs" in shown
    assert "its pods come from a runtime that is not in the file" in shown


def test_pods_of_several_machines_are_not_planned_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["render", "p5/llama-3-1-8b"]) == 0
    path, text = tmp_path / "job.yaml", capsys.readouterr().out
    path.write_text(text.replace("ml.p5en.48xlarge", "p4d.24xlarge"), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(path)]) in (1, 3)
    shown = capsys.readouterr().out
    assert "its pods may take p4d.24xlarge, p5en.48xlarge, and the slowest sets the pace" in shown
    cli.invoke(["preflight", "-f", str(path)])
    assert "82.6 GiB a GPU needed, 40.0 there" in capsys.readouterr().out
    assert "82.6 of 40.0 GiB a GPU, does not fit" in shown
