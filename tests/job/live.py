"""A running job of each kind as a cluster holds it, for the stand-in of kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.job.world import ago, node, stamp
from tests.workload import beds
from tools.kube.manifests import Manifests
from tools.workload import kinds
from tools.workload.pod import Pod
from tools.workload.workload import Workload

Object = dict[str, Any]
NAMESPACE = "team-a"
KINDS = tuple(beds.BEDS)


def condition(kind: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": ago(60), "reason": kind, "message": "m"}


# What the controllers write into the status of a job with two running pods, and of one that has failed.
RUNNING: dict[str, Object] = {
    "PyTorchJob": {
        "conditions": [condition("Created"), condition("Running")],
        "replicaStatuses": {"Worker": {"active": 2}},
    },
    "Volcano": {"state": {"phase": "Running", "lastTransitionTime": ago(60)}, "running": 2},
    "JobSet": {"replicatedJobsStatus": [{"name": "workers", "active": 1, "ready": 1}]},
    "Job": {"active": 2, "ready": 2},
    "HyperPodPyTorchJob": {"conditions": [condition("Created"), condition("Running")]},
    "TrainJob": {"jobsStatus": [{"name": "node", "active": 1}]},
}
FAILED: dict[str, Object] = {
    **{kind: {"conditions": [condition("Failed")]} for kind in KINDS},
    "Volcano": {"state": {"phase": "Failed", "reason": "PodFailed", "lastTransitionTime": ago(60)}},
}


EMPTY = (
    *("events", "networkpolicies", "persistentvolumeclaims", "resourcequotas", "storageclasses"),
    *("persistentvolumes", "configmaps", "secrets"),
)


class Live:
    """The objects of a cluster with one job. `objects` has lists by kubectl's name of the kind."""

    def __init__(self, kind: str, status: Object | None = None, container: Object | None = None) -> None:
        job, *others = beds.bed(kind)
        metadata = {"namespace": NAMESPACE, "uid": "uid-job", "creationTimestamp": ago(900)}
        job["metadata"] |= metadata
        job["status"] = RUNNING[kind] if status is None else status
        found = kinds.of(job, Manifests("bed", others))
        assert found is not None
        self.job: Workload = found
        for role in found.roles:
            role.template["spec"]["containers"][0] |= container or {}
        self.pods = [_pod(one) for one in found.pods() if one.role != "dataset"]
        self.objects: dict[str, list[Object]] = {
            found.resource: [job],
            "pods": self.pods,
            "services": [one for one in others if one["kind"] == "Service"],
            "clustertrainingruntimes.trainer.kubeflow.org": [
                one for one in others if one["kind"] == "ClusterTrainingRuntime"
            ],
            "nodes": [node("node-0", "m5.xlarge")],
            **{name: [] for name in EMPTY},
        }
        self.objects.setdefault("jobs.batch", [])
        self.logs = {self.name(index): f"{stamp(9)} step 1\n" for index in range(len(self.pods))}

    def name(self, index: int) -> str:
        return str(self.pods[index]["metadata"]["name"])

    def owned(self, owner: Object, resource: str) -> None:
        """Another object has made the job."""
        owner["metadata"] = {"namespace": NAMESPACE, "uid": "uid-owner", **owner["metadata"]}
        reference = {key: owner["metadata"][key] for key in ("name", "uid")}
        reference |= {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        self.job.item["metadata"]["ownerReferences"] = [reference]
        self.objects.setdefault(resource, []).append(owner)

    def end(self, code: int, *lines: str) -> None:
        """Every container ends."""
        for pod in self.pods:
            ended = {"exitCode": code, "reason": "Error", "startedAt": ago(800), "finishedAt": ago(60)}
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
            pod["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
            text = "".join(f"{stamp(70 - number)} {line}\n" for number, line in enumerate(lines))
            self.logs[pod["metadata"]["name"]] = text

    def write(self, home: Path) -> None:
        """Make it the cluster that the stand-in shows."""
        (home / "objects.json").write_text(json.dumps(self.objects))
        for name, text in self.logs.items():
            (home / f"{name}.log").write_text(text)


def _pod(one: Pod) -> Object:
    """Return a running pod. The pods of a batch Job have names with random ends."""
    name = f"{one.name}-x7k2p" if "hostname" in one.spec else one.name
    host, dot, subdomain = (one.hosts or ("",))[-1].partition(".")
    names = {"hostname": host, "subdomain": subdomain} if dot else {}
    containers = one.spec["containers"]
    state = {"running": {"startedAt": ago(800)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": one.labels,
            "annotations": one.annotations,
            "creationTimestamp": ago(890),
        },
        "spec": {**one.spec, "nodeName": "node-0", **names},
        "status": {
            "phase": "Running",
            "podIP": f"10.0.0.{one.index}",
            "containerStatuses": [
                {"name": container["name"], "state": state, "restartCount": 0, "ready": True}
                for container in containers
            ],
        },
    }
