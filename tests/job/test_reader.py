"""The pod that reads a job's volume: restricted, read-only, with the job's own run directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, workload
from tools.cli import invoke
from tools.core.errors import UserError
from tools.job import volume_reader
from tools.kube.kubectl import Kubectl
from training.checkpoint.layout import FORMAT, MANIFEST, Manifest, Stored, committed_steps

JOB = "cpu-llama-tiny-train"


def test_it_reads_the_jobs_run_and_writes_nothing(world: NewWorld) -> None:
    job = world("p5/llama-3-1-8b").job
    pod = volume_reader.manifest(workload(job))
    (container,) = pod["spec"]["containers"]
    own = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["image"] == own["image"]
    values = {one["name"]: one["value"] for one in container["env"]}
    assert values["JOB_NAME"] == job["metadata"]["name"]
    assert values["TRAINYARD_RUN"] == {one["name"]: one.get("value") for one in own["env"]}["TRAINYARD_RUN"]
    order = [one["name"] for one in container["env"]]
    assert order.index("JOB_NAME") < order.index("TRAINYARD_RUN"), "$(NAME) refers only to variables above it"
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in pod["spec"]["volumes"]}
    assert all(one["readOnly"] for one in container["volumeMounts"] if one["name"] == "shared")
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert "limits" in container["resources"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"], "it uses no device"
    labels = pod["metadata"]["labels"]
    assert labels.get("training.kubeflow.org/job-name") != job["metadata"]["name"], "it is not a pod of the job"


def test_a_running_pod_is_used_first(world: NewWorld, cluster: Cluster) -> None:
    made = world()
    home = cluster(made)
    with volume_reader.reading(Kubectl(), made.snapshot(), lambda _: None) as pod:
        assert pod.name == made.name(0)
    assert not (home / "asked.txt").exists(), "no question to the cluster"


def test_a_job_without_a_claim_has_nothing_to_read(world: NewWorld) -> None:
    job = world().job
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["volumes"] = [one for one in spec["volumes"] if "persistentVolumeClaim" not in one]
    with pytest.raises(UserError, match="gone with its pods"):
        volume_reader.manifest(workload(job))


def test_checkpoints_of_a_job_are_read_through_its_pod(
    world: NewWorld, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = cluster(world())
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    checkpoints = home / "volume" / "checkpoints"
    for step in (1, 2, 3):
        (checkpoints / f"step-{step:08d}").mkdir(parents=True)
        manifest = Manifest(
            step=step, world_size=1, run_state={}, format=FORMAT, attempt="a", meta={}, tensors={},
            files={name: Stored(0, "0" * 64) for name in ("rank-00000.json", "rank-00000.safetensors")},
        )  # fmt: skip
        (checkpoints / f"step-{step:08d}" / MANIFEST).write_bytes(manifest.encode())
        for name in manifest.files:
            (checkpoints / f"step-{step:08d}" / name).touch()
    assert invoke(["checkpoint", "list", "--job", JOB]) == 0
    assert "step 3  0 bytes in 2 files by 1 rank" in capsys.readouterr().out
    assert invoke(["checkpoint", "prune", "--job", JOB, "--yes"]) == 0
    assert committed_steps(checkpoints) == [2, 3]
    assert invoke(["checkpoint", "show", "--job", JOB, "--step", "1"]) == 2
    assert "has no step 1; steps: 2, 3" in capsys.readouterr().err
    program = home / "python3"
    program.write_text("#!/bin/sh\necho '{\"run\": 1}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH'].partition(':')[0]}:{home}:{os.environ['PATH'].partition(':')[2]}")
    assert invoke(["checkpoint", "list", "--job", JOB]) == 3
    assert "gave an answer that is not the trainer's" in capsys.readouterr().err
