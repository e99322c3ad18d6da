"""`yard new script`: a stranger's script becomes an ordinary Component with generated cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tools import cli
from tools.cells import matrix
from tools.cells.kustomize import Renderer
from tools.core import repo
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse
from tools.new.start_command import for_pods, words_of
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload.pytorchjob import PyTorchJob

IMAGE = "registry.example.com/team/mine:1"
COMMON: dict[str, Any] = {
    "image": IMAGE,
    "command": ["torchrun", "--nnodes=2", "--rdzv-backend", "c10d", "--rdzv-endpoint=$(MASTER_ADDR):29400"],
    "args": ["train.py", "--nnodes", "7"],
    "env": [
        {"name": "EPOCHS", "value": "3"},
        {"name": "MASTER_ADDR", "value": "mine-0.mine"},
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['index']"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "wandb"}}},
    ],
    "volumeMounts": [
        {"name": "shared", "mountPath": "/data"},
        {"name": "code", "mountPath": "/code"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ],
}
POD = {
    "containers": [{"name": "trainer", **COMMON}],
    "nodeSelector": {"pool": "gpu"},
    "imagePullSecrets": [{"name": "registry"}],
    "volumes": [
        {"name": "shared", "persistentVolumeClaim": {"claimName": "datasets"}},
        {"name": "code", "configMap": {"name": "code"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ],
}
CODE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": "print(1)\n"}}
PYTORCH_POD = {**POD, "containers": [{"name": "pytorch", **COMMON}]}
KINDS: dict[str, dict[str, Any]] = {
    "kubeflow.org/v1 PyTorchJob": {
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": {"spec": PYTORCH_POD}},
            "Worker": {"replicas": 2, "template": {"spec": PYTORCH_POD}},
        }
    },
    "jobset.x-k8s.io/v1alpha2 JobSet": {
        "replicatedJobs": [
            {
                "name": "node",
                "template": {"spec": {"parallelism": 3, "completions": 3, "template": {"spec": POD}}},
            }
        ]
    },
    "batch/v1 Job": {
        "completionMode": "Indexed", "completions": 3, "parallelism": 3, "template": {"spec": POD}
    },
    "batch.volcano.sh/v1alpha1 Job": {
        "minAvailable": 3, "tasks": [{"name": "node", "replicas": 3, "template": {"spec": POD}}]
    },
}  # fmt: skip
Rendered = Callable[[str], Manifests]


@pytest.fixture
def root(whole_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(repo, "root", lambda: whole_checkout)
    monkeypatch.setattr(repo, "project", lambda: whole_checkout)
    return whole_checkout


@pytest.fixture
def rendered(root: Path, renderer: Renderer) -> Rendered:
    return lambda cell: parse(renderer.build(root / "overlays" / cell), cell)


def yard(*arguments: str) -> int:
    return cli.invoke(["new", "script", *arguments])


def container(manifests: Manifests) -> dict[str, Any]:
    (one,) = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return one


def test_a_command_becomes_cells_that_are_one_job(root: Path, rendered: Rendered, capsys: Any) -> None:
    words = ("--image", IMAGE, "--command", "torchrun train.py --text 'a b'", "--nodes", "2")
    assert yard("mine", *words, "--hardware", "g5", "--hardware", "trn1", "--hardware", "cpu") == 0
    said = capsys.readouterr().out
    assert "cell overlays/g5/mine: 2 pods" in said
    assert not matrix.check(root).changes
    for hardware in ("cpu", "g5", "trn1"):
        found = rendered(f"{hardware}/mine")
        one = container(found)
        assert one["command"] == ["python3", "/trainyard-agent/agent.pyz", "--"]
        assert one["args"] == ["torchrun", "train.py", "--text", "a b"]
        assert one["image"] == IMAGE
        assert "/etc/trainyard" not in {mount["mountPath"] for mount in one["volumeMounts"]}
        assert {item["kind"] for item in found.objects} == {"PyTorchJob", "ServiceAccount", "NetworkPolicy"}
        assert wiring.analyse(PyTorchJob(found.job(), manifests=found)).verdict.state is State.PASS
        assert [verdict.summary for verdict in evaluate(found).of(State.FAIL)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_of_any_kind_becomes_a_cell(
    kind: str, root: Path, rendered: Rendered, tmp_path: Path, capsys: Any
) -> None:
    api, _, name = kind.partition(" ")
    job = {"apiVersion": api, "kind": name, "metadata": {"name": "theirs"}, "spec": KINDS[kind]}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([CODE, job]))
    assert yard("mine", "--from-file", str(file)) == 0
    said = capsys.readouterr().out
    assert "--nnodes=2 --rdzv-backend c10d" in said
    assert "variables not taken, because the job sets its own: MASTER_ADDR, INDEX" in said
    assert "nodeSelector" in said
    found = rendered("cpu/mine")
    one = container(found)
    assert one["args"] == ["torchrun", "train.py", "--nnodes", "7"]
    environment = {entry["name"]: entry for entry in one["env"]}
    assert environment["EPOCHS"]["value"] == "3"
    assert environment["KEY"]["valueFrom"]["secretKeyRef"]["name"] == "keys"
    assert not {"MASTER_ADDR", "INDEX"} & environment.keys()
    pod = found.job()["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert pod["replicas"] == 3
    volumes = {volume["name"]: volume for volume in pod["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
    assert volumes[mounts["/data"]]["persistentVolumeClaim"]["claimName"] == "datasets"
    (code,) = found.of_kind("ConfigMap")
    assert volumes[mounts["/code"]]["configMap"]["name"] == code["metadata"]["name"]
    assert mounts["/dev/shm"] == "shm"
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "1Gi"
    assert wiring.analyse(PyTorchJob(found.job(), manifests=found)).verdict.state is State.PASS


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("accelerate launch --num_machines 2 --multi_gpu train.py --lr 1", "torchrun train.py --lr 1"),
        ("accelerate launch -m my.train", "torchrun -m my.train"),
        (
            "accelerate launch --mixed_precision=bf16 --multi_gpu a.py",
            "env ACCELERATE_MIXED_PRECISION=bf16 torchrun a.py",
        ),
        ("accelerate launch --config_file a.yaml a.py", "accelerate launch --config_file a.yaml a.py"),
        ("deepspeed --num_gpus=8 train.py --deepspeed z.json", "torchrun train.py --deepspeed z.json"),
        ("python -u train.py", "torchrun train.py"),
        ("python -m my.train", "torchrun -m my.train"),
        ("python -W ignore train.py", "python -W ignore train.py"),
        ("bash -c 'torchrun train.py'", "bash -c 'torchrun train.py'"),
        ("env A=1 python train.py", "env A=1 torchrun train.py"),
        ("uv run python -u train.py", "uv run torchrun train.py"),
        ("conda run -n t accelerate launch a.py", "conda run -n t torchrun a.py"),
        ("/opt/venv/bin/python train.py", "/opt/venv/bin/torchrun train.py"),
        ("tini -- torchrun --nnodes 2 a.py", "tini -- torchrun a.py"),
        ("torchrun --nproc_per_node 8 -m a --nnodes 2", "torchrun -m a --nnodes 2"),
        (
            "python -m torch.distributed.run --standalone --master_port 1 train.py",
            "python -m torch.distributed.run train.py",
        ),
    ],
)  # fmt: skip
def test_the_ranks_of_several_pods_are_started_by_torchrun(command: str, wanted: str) -> None:
    said: list[str] = []
    assert " ".join(for_pods(command.split(), 2, said)) == wanted
    stays = wanted == command and not command.startswith("bash")
    assert (f"with {command.split()[2 if 'launch' in command else 1]}, only" in "".join(said)) == stays
    alone = for_pods(command.split(), 1, [])
    assert alone == command.split() or "torch" in command


def test_variables_before_a_command_are_given_by_env() -> None:
    assert words_of("A=1 B='x y' torchrun a.py C=2") == ["env", "A=1", "B=x y", "torchrun", "a.py", "C=2"]
    assert words_of("torchrun a.py C=2") == ["torchrun", "a.py", "C=2"]
    assert words_of("") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mine", "--command", "a"), "the script has no image"),
        (("mine", "--image", IMAGE), "the script has no command"),
        (("mine", "--image", "--privileged", "--command", "a"), "not the name of an image"),
        (("mine", "--image", IMAGE, "--command", "cd x && torchrun a"), "--command: && needs a shell"),
        (("mine", "--image", IMAGE, "--command", "torchrun 'a"), "--command: No closing quotation"),
        (("Mine", "--image", IMAGE, "--command", "a"), "cannot be a model's name"),
        (("mine", "--image", IMAGE, "--command", "a", "--hardware", "p55"), "did you mean p5?"),
        (("llama-tiny", "--image", IMAGE, "--command", "a"), "overlays/model/llama-tiny exists"),
        (("mine", "--from-file", "two.yaml"), "two.yaml: contains PyTorchJob/a, PyTorchJob/b"),
        (("mine", "--from-file", "none.yaml"), "contains no job of a kind that is known"),
        (("mine", "--from-file", "bad.yaml"), "must be a mapping"),
        (("mine", "--from-file", "missing.yaml"), "missing.yaml: No such file"),
    ],
)
def test_after_an_error_nothing_has_changed(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": PYTORCH_POD}}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}
    jobs = [json.dumps({**job, "metadata": {"name": name}}) for name in "ab"]
    Path("two.yaml").write_text("\n---\n".join(jobs))
    Path("none.yaml").write_text(json.dumps(CODE))
    Path("bad.yaml").write_text(json.dumps({**job, "metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": 7}}))
    tree = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert yard(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == tree
