"""The pod that reads a job's volume: restricted, read-only, with the job's own run directory."""

from __future__ import annotations

import pytest

from tests.job.conftest import Cluster, NewWorld, workload
from tools.core.errors import UserError
from tools.job import volume_reader
from tools.kube.kubectl import Kubectl


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
