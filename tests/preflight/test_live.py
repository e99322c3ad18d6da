"""What `yard preflight --live` adds: the runtime of a TrainJob, which often only the cluster has."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.workload.beds import RUNTIME, bed
from tools.core.verdict import State
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests
from tools.preflight import live
from tools.preflight.evaluate import evaluate

SEEN = {**RUNTIME, "metadata": {"name": "torch", "uid": "1", "managedFields": [{}]}}


LOST = ["ClusterTrainingRuntime torch is not in the cluster"]


@pytest.mark.parametrize(
    ("code", "out", "error", "state", "lost"),
    [
        (0, json.dumps(SEEN), "", State.PASS, []),
        (0, "", "", State.CANNOT_TELL, LOST),
        (
            1,
            "",
            "error: the server doesn't have a resource type",
            State.CANNOT_TELL,
            ["ClusterTrainingRuntime torch is not in the cluster"],
        ),
        (1, "", "Error from server (Forbidden): clustertrainingruntimes is forbidden", State.CANNOT_TELL, []),
    ],
)
def test_a_runtime_is_read_from_the_cluster(
    code: int, out: str, error: str, state: State, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(here: Kubectl, *words: str, names: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append((here.namespace, words[:2], names))
        return subprocess.CompletedProcess(words, code, out, error)

    monkeypatch.setattr(Kubectl, "run", run)
    whole, faults = live.with_runtimes(Kubectl(None, "team"), Manifests("job.yaml", bed("TrainJob")[:1]))
    assert asked == [("team", ("get", "clustertrainingruntimes.trainer.kubeflow.org"), ["torch"])]
    assert [one.summary for one in faults] == lost
    assert [one.state for one in evaluate(whole).verdicts if one.details["rule"] == "wiring"] == [state]
    live.with_runtimes(Kubectl(None, "team"), Manifests("job.yaml", bed("TrainJob")))
    assert len(asked) == 1, "the file has it"


@pytest.mark.parametrize(
    ("code", "out", "error", "state", "said"),
    [
        (0, "", "", State.FAIL, "PriorityClass high is not in the cluster"),
        (0, "high\n", "", State.PASS, "PriorityClass high is there"),
        (1, "", "error: the server doesn't have a resource type", State.FAIL, "LocalQueue team is not in namespace a"),
        (1, "", "Forbidden", State.CANNOT_TELL, "this user may not get runtimeclasses"),
    ],
)
def test_classes_and_queues_are_looked_up(
    code: int, out: str, error: str, state: State, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = bed("PyTorchJob")
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec |= {"priorityClassName": "high", "runtimeClassName": "nvidia"}

    def run(here: Kubectl, *words: str, names: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, code, out, error)

    monkeypatch.setattr(Kubectl, "run", run)
    found = live.check(Kubectl(None, "a"), Manifests("job.yaml", [job]))
    assert any(said in one.summary and one.state is state for one in found), found
    needs = evaluate(Manifests("job.yaml", [job])).needs
    assert needs == ["LocalQueue team", "PriorityClass high", "RuntimeClass nvidia"]
