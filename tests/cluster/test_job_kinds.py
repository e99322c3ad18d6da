"""`yard job` on an Indexed Job, and on a JobSet, a TrainJob and a Volcano Job without their controllers.

kwok plays the kubelets. Kubernetes' own controller makes the Indexed Job's pods and ends them. The other
kinds are minimal CRDs: their pods and status are written here as their controllers would write them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.kube import Kube, condition
from tests.cluster.machines import fake_node
from tests.job.live import RUNNING
from tests.workload import beds
from tools.cli import invoke
from tools.facts.instances import instance
from tools.kube.manifests import Manifests
from tools.workload import kinds
from tools.workload.pod import Pod
from tools.workload.workload import Workload

NODE = "kinds-0"
SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
# Kind, resource, and whether it is in a namespace, by API version.
SERVED = {
    "jobset.x-k8s.io/v1alpha2": [("JobSet", "jobsets", True)],
    "batch.volcano.sh/v1alpha1": [("Job", "jobs", True)],
    "bus.volcano.sh/v1alpha1": [("Command", "commands", True)],
    "trainer.kubeflow.org/v1alpha1": [
        ("TrainJob", "trainjobs", True),
        ("ClusterTrainingRuntime", "clustertrainingruntimes", False),
    ],
}


def crds() -> Iterator[Object]:
    """Definitions that accept any content."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for api, served in SERVED.items():
        group, _, version = api.partition("/")
        for kind, plural, namespaced in served:
            names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
            yield {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {
                    "group": group,
                    "names": names,
                    "scope": "Namespaced" if namespaced else "Cluster",
                    "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
                },
            }


@pytest.fixture(scope="module")
def served(kube: Kube, fake: None) -> Iterator[None]:
    """A machine and the kinds."""
    wanted = list(crds())
    kube.put([fake_node(instance("m5.2xlarge"), NODE), *wanted])
    names = [one["metadata"]["name"] for one in wanted]

    def established() -> bool:
        return all(condition(kube.get("crd", name) or {}, "Established") for name in names)

    kube.wait("the kinds", established, 30)
    yield
    kube.call("delete", "node", NODE, "--wait=false")
    kube.call("delete", "crd", *names, "--wait=false")


@pytest.fixture
def team(kube: Kube, served: None, namespace: str, asked: None) -> str:
    return namespace


def answer(capsys: pytest.CaptureFixture[str], team: str, *words: str, code: int = 0) -> Any:
    """What `yard job` prints as JSON."""
    capsys.readouterr()
    assert invoke(["job", *words, "-n", team, "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def secured(objects: list[Object]) -> Workload:
    """Let the job's pods fit into a namespace that enforces `restricted`, and return the job."""
    workload = kinds.of(objects[0], Manifests("bed", objects[1:]))
    assert workload is not None
    for role in workload.roles:
        spec = role.template["spec"]
        spec |= {"securityContext": POD, "nodeName": NODE}
        spec["containers"][0] |= {"securityContext": SECURE, "image": "localhost/trainer:1"}
    return workload


def test_an_indexed_job_is_watched_and_suspended(kube: Kube, team: str, capsys: pytest.CaptureFixture[str]) -> None:
    objects = beds.bed("Job")
    spec = secured(objects).roles[0].template["spec"]
    spec |= {"nodeName": None, "nodeSelector": {"no": "such"}}
    kube.put(objects, team)
    kube.wait("two pods", lambda: phases(kube, team) == ["Pending"] * 2, 60)
    kube.wait("the status", lambda: answer(capsys, team, "list")[0]["pods"] == "2/2", 30)
    (row,) = answer(capsys, team, "list")
    assert (row["kind"], row["state"]) == ("Job", "Running"), "the controller counts pods without a node"
    status = answer(capsys, team, "status", "job/job")
    assert (status["kind"], status["state"], status["uid"]) == ("Job", "Running", row["uid"])
    names = sorted(pod["metadata"]["name"] for pod in kube.list("pods", team))
    assert [pod["pod"] for pod in status["pods"]] == names, "by their index"
    assert answer(capsys, team, "why", code=1)["cause"].startswith("unschedulable")
    stopped = answer(capsys, team, "stop", "job")
    assert (stopped["result"], stopped["uid"]) == ("suspended", row["uid"])
    assert kube.list("pods", team) == []
    kube.wait("the condition", lambda: answer(capsys, team, "list")[0]["state"] == "Suspended", 30)
    assert answer(capsys, team, "why", code=1)["cause"] == "suspended"
    assert answer(capsys, team, "stop", "job", "--delete")["result"] == "deleted"
    assert kube.get("jobs.batch", "job", team) is None


def test_an_indexed_job_that_has_ended_is_not_stopped(
    kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """kwok lets the pods of a batch Job succeed at once."""
    objects = beds.bed("Job")
    secured(objects)
    kube.put(objects, team)
    kube.wait("its end", lambda: answer(capsys, team, "list")[0]["state"] == "Succeeded", 60)
    assert answer(capsys, team, "status")["state"] == "Succeeded"
    assert answer(capsys, team, "why")["state"] == "healthy"
    assert invoke(["job", "stop", "job", "-n", team]) == 1
    assert "job has ended already: Succeeded" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "Volcano"])
def test_a_job_of_another_kind_is_watched_and_suspended(
    kind: str, kube: Kube, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = beds.bed(kind)
    job = secured(objects)
    kube.put([{**objects[0], "status": RUNNING[kind]}, *objects[1:]], team)
    kube.put([pod(one) for one in job.pods() if one.role != "dataset"], team)
    kube.wait("two running pods", lambda: phases(kube, team) == ["Running"] * 2, 60)
    (row,) = answer(capsys, team, "list")
    assert (row["job"], row["kind"], row["state"]) == ("job", job.kind, "Running")
    status = answer(capsys, team, "status")
    assert (status["state"], len(status["pods"])) == ("Running", 2)
    assert status["pods_wanted"] == job.replicas
    assert status["uid"] == row["uid"]
    assert answer(capsys, team, "why")["state"] == "healthy"
    capsys.readouterr()
    assert invoke(["job", "logs", "-n", team]) == 3
    assert capsys.readouterr().err.count("not seen") == 2, "kwok has no logs"
    controller = threading.Thread(target=act, args=(kube, team, job))
    controller.start()
    stopped = answer(capsys, team, "stop", "job", code=3)
    controller.join()
    assert (stopped["result"], stopped["saved"]) == ("suspended", False)
    assert answer(capsys, team, "list")[0]["state"] == "Suspended"
    assert answer(capsys, team, "why", code=1)["cause"] == "suspended"
    if kind == "TrainJob":
        kube.call("delete", "clustertrainingruntime", "torch")


def act(kube: Kube, team: str, job: Workload) -> None:
    """Do what the controller of a job does when it is asked to suspend it."""
    done: Object = {"conditions": [{"type": "Suspended", "status": "True"}]}
    wanted = json.dumps({"status": {"state": {"phase": "Aborted"}} if job.kind == "Job" else done})
    end = time.monotonic() + 60
    while time.monotonic() < end and not is_asked(kube, team, job):
        time.sleep(0.2)
    kube.run("delete", "pods", "--all", f"--namespace={team}")
    kube.run("patch", job.resource, "job", f"--namespace={team}", "--type=merge", f"--patch={wanted}")


def is_asked(kube: Kube, team: str, job: Workload) -> bool:
    if job.kind == "Job":
        commands = kube.list("commands.bus.volcano.sh", team)
        return [(one["action"], one["target"]["name"]) for one in commands] == [("AbortJob", "job")]
    found = kube.get(job.resource, "job", team)
    return found is not None and found["spec"].get("suspend") is True


def phases(kube: Kube, team: str) -> list[str]:
    return [one.get("status", {}).get("phase") for one in kube.list("pods", team)]


def pod(one: Pod) -> Object:
    """A pod as the controller of its job makes it."""
    metadata = {"name": one.name, "labels": one.labels, "annotations": one.annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": one.spec}
