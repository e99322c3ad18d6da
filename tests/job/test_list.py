"""What `yard job list` shows of jobs, and of what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tools.cli.job import list as listing


def test_list_shows_state_model_and_uid(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.end("Failed")
    cluster(made)
    (row,) = yard.json("list")
    assert (row["state"], row["uid"], row["pods"]) == ("Failed", "uid-job", "0/2")
    assert (row["model"], row["step"], row["usd_per_hour"]) == ("llama-tiny", "-", "-"), "it does not run"
    yard("status", code=1)


def test_list_says_of_how_many_jobs_it_reads_the_progress(
    world: NewWorld, cluster: Cluster, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(world())
    assert "progress is read" not in yard("list").err
    monkeypatch.setattr(listing, "MOST", 0)
    said = yard("list")
    assert "progress is read of 0 of 1 running jobs" in said.err
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
