"""What `yard job list` shows of jobs, and of what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tools.job.snapshot import many


def test_list_shows_state_model_and_uid(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.end("Failed")
    cluster(made)
    (row,) = yard.json("list")
    assert (row["state"], row["uid"], row["pods"]) == ("Failed", "uid-job", "0/2")
    assert (row["model"], row["step"], row["usd_per_hour"]) == ("llama-tiny", "-", "-"), "it does not run"
    yard("status", code=1)


@pytest.mark.parametrize("limit", ["MOST", "SECONDS"])
def test_list_says_of_how_many_jobs_it_reads_the_progress(
    limit: str, world: NewWorld, cluster: Cluster, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cluster(world())
    assert "progress is read" not in yard("list").err
    assert " exec " in (home / "asked.txt").read_text()
    (home / "asked.txt").unlink()
    monkeypatch.setattr(many, limit, 0)
    said = yard("list")
    assert "progress is read of 0 of 1 running jobs" in said.err
    assert "Running" in said.out
    assert " exec " not in (home / "asked.txt").read_text()


def test_list_asks_once_for_all_pods_and_once_for_the_run_of_each_job(
    world: NewWorld, cluster: Cluster, yard: Yard
) -> None:
    """Two jobs of a namespace, and one of the same name in another; one of them has a pod less."""
    home = cluster(world("p5/llama-3-1-8b"))
    objects = json.loads((home / "objects.json").read_text())
    kinds = ("pytorchjobs.kubeflow.org", "pods")
    text = json.dumps({kind: objects[kind] for kind in kinds})
    name = "p5-llama-3-1-8b-train"
    more = [json.loads(text.replace(name, "second")), json.loads(text.replace('"team-a"', '"team-b"'))]
    more[0]["pods"].pop()
    objects |= {kind: [*objects[kind], *(item for one in more for item in one[kind])] for kind in kinds}
    (home / "objects.json").write_text(json.dumps(objects))
    rows = yard.json("list", "-A")
    jobs = [("team-a", name), ("team-a", "second"), ("team-b", name)]
    assert [(row["namespace"], row["job"]) for row in rows] == jobs
    whole, less, other = (float(row["usd_per_hour"].replace(",", "")) for row in rows)
    assert less < whole == other, "each job has its own pods"
    asked = (home / "asked.txt").read_text().splitlines()
    ran = sorted((line.split()[0], line.split()[4]) for line in asked if " exec " in line)
    assert ran == [(f"--namespace={namespace}", f"{job}-worker-0") for namespace, job in jobs]
    assert len(asked) == 2 + 1 + len(rows), "the kinds that are served, the jobs, the pods, and a run directory each"


def test_list_says_that_pods_may_not_be_listed(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    home = cluster(world())
    (home / "forbidden").write_text("pods")
    said = yard("list")
    assert "not seen: pods: kubectl get: Error from server (Forbidden)" in said.err
    assert "Running" in said.out


def test_list_says_that_run_directories_may_not_be_read(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    home = cluster(world())
    assert "not seen" not in yard("list").err, "a control"
    (home / "forbidden").write_text("exec")
    said = yard("list")
    assert "not seen: progress of 1 job: kubectl exec: Error from server (Forbidden)" in said.err
    assert "Running" in said.out


def test_what_is_left_has_a_price_and_only_ours_a_command(
    world: NewWorld, cluster: Cluster, yard: Yard, tmp_path: Path
) -> None:
    """A finished job, an unused claim, a volume, a load balancer, a TensorBoard; the control has no proof."""
    made = world()
    made.end("Failed")
    cluster(made)
    path = tmp_path / "objects.json"
    objects = json.loads(path.read_text())
    classes = [
        {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": f"{name}.csi.aws.com", "parameters": more}
        for name, more in (("ebs", {"type": "gp3"}), ("fsx", {"perUnitStorageThroughput": "odd"}))
    ]
    size = {"resources": {"requests": {"storage": "100Gi"}}}
    claims: list[dict[str, Any]] = [
        {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "training"}, "spec": spec}
        for name, spec in (("unused", {**size, "storageClassName": "ebs"}), ("odd", {"storageClassName": "fsx"}))
    ]
    claims.append({**claims[0], "metadata": {"name": "trainyard", "namespace": "team-a"}})  # which the pods mount
    claims.append({**claims[0], "metadata": {"name": "without-a-volume"}, "status": {"phase": "Pending"}})
    claims.append({**claims[0], "metadata": {"name": "ephemeral", "ownerReferences": [{"kind": "Pod"}]}})
    volume = {"metadata": {"name": "gone"}, "spec": {"capacity": {"storage": "10Gi"}, "storageClassName": "ebs"}}
    balancer = {"ingress": [{"hostname": "x.elb.us-west-2.amazonaws.com"}]}
    service = {"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": balancer}}
    labels = {"app.kubernetes.io/part-of": "trainyard"}
    boards = [
        {"kind": "Deployment", "metadata": {"name": "tensorboard", "namespace": where, "labels": own}}
        for where, own in (("training", labels), ("theirs", {}))
    ]
    objects |= {
        "storageclasses": classes, "persistentvolumeclaims": claims, "services": [{"kind": "Service", **service}],
        "persistentvolumes": [
            {"kind": "PersistentVolume", **volume, "metadata": {"name": name}, "status": {"phase": phase}}
            for name, phase in (("gone", "Released"), ("stuck", "Failed"), ("used", "Bound"))
        ],
        "deployments.apps": boards, "configmaps": [],
    }  # fmt: skip
    path.write_text(json.dumps(objects))
    rows = {(row["kind"], row["name"]): row for row in yard.json("list", "--left")["left"]}
    assert {key: row["price"] and round(row["price"], 2) for key, row in rows.items()} == {
        ("finished job", "cpu-llama-tiny-train"): 0.0, ("claim", "unused"): 8.0, ("claim", "odd"): None,
        ("volume", "gone"): 0.8, ("volume", "stuck"): 0.8, ("load balancer", "web"): 16.43,
        ("TensorBoard", "tensorboard"): 0.0,
    }  # fmt: skip
    assert [key for key, row in rows.items() if row["remove"]] == [("TensorBoard", "tensorboard")]
    proof = {"name": "cpu-llama-tiny-train-submitted", "ownerReferences": [{"uid": "uid-job"}]}
    path.write_text(json.dumps({**objects, "configmaps": [{"kind": "ConfigMap", "metadata": proof}]}))
    out = yard.out("list", "--left")
    assert "yard job stop cpu-llama-tiny-train --delete -n " in out
    assert "26.03 $/month  for what 7 objects hold, and 1 object without a price" in out
    (tmp_path / "forbidden").write_text("pods persistentvolumes")
    unseen = yard("list", "--left", code=3)
    assert "not seen: Pod: " in unseen.err
    assert "claim" not in unseen.out, "whether a pod mounts it is unknown"
    (tmp_path / "forbidden").write_text("persistentvolumes")
    assert "not seen: PersistentVolume: " in yard("list", "--left").err, "a team may not see them"
    (tmp_path / "forbidden").write_text("trainjobs.trainer.kubeflow.org")
    yard("list", "--left", code=3)
