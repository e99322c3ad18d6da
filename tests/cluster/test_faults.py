"""What the training operator v1.9.4 really does with faults, and what our manifests and tools do about it.

The pods are kwok's, so a test can give them any fate by writing their status, as a kubelet would.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.api import KubectlError, Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube, condition, renamed, shared_claim
from tests.cluster.machines import fake_node
from tools.core.verdict import State
from tools.facts.instances import instance
from tools.kube.manifests import Manifests, name_of
from tools.preflight.evaluate import evaluate
from tools.workload.operator_admission import rejections
from tools.workload.operator_pods import LATEST

CELL = "overlays/cpu/llama-tiny"
JOB = "cpu-llama-tiny-train"
QUIET_SECONDS = 12
DEADLINE_SECONDS = 15  # a busy machine starts the pods within it: their last event must be before it
Change = Callable[[Object], None]


class Running:
    """A job with two pods that kwok runs."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace

    def job(self) -> Object:
        return self.kube.get("pytorchjob", JOB, self.namespace) or {}

    def pod(self, index: int) -> Object:
        """Return worker `index`, or nothing."""
        return self.kube.get("pod", f"{JOB}-worker-{index}", self.namespace) or {}

    def is_running(self) -> bool:
        """Return whether both pods and the job are running."""
        phases = {(self.pod(index).get("status") or {}).get("phase") for index in (0, 1)}
        return phases == {"Running"} and condition(self.job(), "Running") is not None

    def is_going(self, index: int) -> bool:
        """Return whether worker `index` is being deleted or is gone."""
        pod = self.pod(index)
        return not pod or "deletionTimestamp" in pod["metadata"]

    def end_pod(self, index: int, phase: str, code: int, **status: Any) -> str:
        """Write a pod's end as its kubelet would, and return the pod's UID.

        The operator deletes a failed pod by its name, on a busy machine a second time after it was made again.
        """
        self.kube.wait(f"worker {index}", lambda: bool(self.pod(index)), 60)
        pod = self.pod(index)
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        container = {"name": "pytorch", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [container | {"state": {"terminated": ended}}]
        patch = {"status": {"phase": phase, "containerStatuses": statuses, **status}}
        words = ("pod", name_of(pod), f"--namespace={self.namespace}", "--subresource=status", "--type=merge")
        self.kube.run("patch", *words, "-p", json.dumps(patch))
        return str(pod["metadata"]["uid"])

    def wait_replaced(self, index: int, uid: str) -> None:
        """Wait until a new pod of the same name is running."""

        def replaced() -> bool:
            pod = self.pod(index)
            return bool(pod) and pod["metadata"]["uid"] != uid and pod["status"].get("phase") == "Running"

        self.kube.wait(f"another worker {index}", replaced, 60)

    def conditions(self) -> list[str]:
        """Return the conditions that are True, in the job's order."""
        found = (self.job().get("status") or {}).get("conditions") or []
        return [one["type"] for one in found if one["status"] == "True"]


@pytest.fixture(scope="module")
def machine(kube: Kube, fake: None) -> Iterator[None]:
    """A kwok node with room for every job of this file."""
    kube.put([fake_node(instance("m5.24xlarge"), "faults-0", {"trainyard-test": "kwok-faults"})])
    yield
    kube.call("delete", "nodes", "--selector=trainyard-test=kwok-faults", "--wait=false")


@pytest.fixture
def started(kube: Kube, machine: None, cells: list[Manifests], namespace: str) -> Callable[..., Running]:
    """A function that applies the changed cell and waits until its pods run."""
    cell = next(one for one in cells if one.source == CELL)

    def start(*changes: Change) -> Running:
        objects = copy.deepcopy(cell.objects)
        for change in changes:
            change(next(item for item in objects if item["kind"] == "PyTorchJob"))
        kube.put(shared_claim(namespace), namespace)
        kube.put(objects, namespace)
        running = Running(kube, namespace)
        kube.wait("both pods", running.is_running, 90)
        return running

    return start


def test_37_an_evicted_pod_is_made_again(started: Callable[..., Running]) -> None:
    """The new pod has the same name, index and environment. The job goes from Restarting to Running."""
    running = started()
    before = running.pod(1)
    running.wait_replaced(1, running.end_pod(1, "Failed", 137, reason="Evicted"))
    after = running.pod(1)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["spec"]["containers"][0]["env"] == before["spec"]["containers"][0]["env"]
    running.kube.wait("the job to run again", running.is_running, 60)
    assert "Failed" not in running.conditions()


def test_38_one_pod_that_ends_with_0_when_preempted_makes_the_job_a_success(
    started: Callable[..., Running],
) -> None:
    """So ours must not: the entrypoint ends a drained trainer with another code (tests/training)."""
    running = started()
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    running.end_pod(1, "Succeeded", 0, conditions=[target])
    running.kube.wait("the operator's verdict", lambda: "Succeeded" in running.conditions(), 60)
    running.kube.wait("the other pod to be taken away", lambda: running.is_going(0), 60)


def test_38_control_the_same_pod_with_143_is_made_again(started: Callable[..., Running]) -> None:
    running = started()
    running.wait_replaced(1, running.end_pod(1, "Failed", 143))
    assert "Succeeded" not in running.conditions()


def test_39_exit_code_restarts_are_not_bounded_by_the_backoff_limit(started: Callable[..., Running]) -> None:
    running = started(_restart_policy("ExitCode"), _run_policy(backoffLimit=3))
    for _ in range(6):
        running.wait_replaced(1, running.end_pod(1, "Failed", 137))
    assert "Failed" not in running.conditions()


def test_39_a_permanent_exit_code_fails_the_job_without_a_completion_time(
    started: Callable[..., Running],
) -> None:
    """Without it, ttlSecondsAfterFinished never removes the job."""
    running = started(_restart_policy("ExitCode"), _run_policy(ttlSecondsAfterFinished=1))
    running.end_pod(1, "Failed", 1)
    running.kube.wait("the operator's verdict", lambda: "Failed" in running.conditions(), 60)
    assert "completionTime" not in running.job()["status"]
    time.sleep(QUIET_SECONDS)
    assert running.job(), "the job was removed after all"


def test_40_a_quiet_job_outlives_its_deadline(started: Callable[..., Running]) -> None:
    """This is why the entrypoint has its own guard against hangs."""
    running = started(_run_policy(activeDeadlineSeconds=DEADLINE_SECONDS))
    time.sleep(DEADLINE_SECONDS + 3)
    assert running.is_running()
    # Control: any event of a pod wakes the operator, and the deadline counts.
    running.kube.run("annotate", "pod", f"{JOB}-worker-0", f"--namespace={running.namespace}", "woken=yes")
    running.kube.wait("the deadline to count", lambda: "Failed" in running.conditions(), 60)


def test_41_without_the_operator_pods_go_on_and_applying_fails(
    started: Callable[..., Running], control_plane: ControlPlane, cells: list[Manifests]
) -> None:
    """When the operator is back, everything continues, and no pod exists twice."""
    running = started()
    before = {index: running.pod(index)["metadata"]["uid"] for index in (0, 1)}
    control_plane.process("training-operator").kill()
    cell = next(one for one in cells if one.source == CELL)
    with pytest.raises(KubectlError, match="failed calling webhook"):
        control_plane.kube.put(renamed(cell, "second"), running.namespace)
    assert running.is_running()
    control_plane.restart_operator()
    control_plane.kube.put(renamed(cell, "second"), running.namespace)
    running.kube.wait("the second job's pods", lambda: len(_pods(running)) == 4, 60)
    assert {index: running.pod(index)["metadata"]["uid"] for index in (0, 1)} == before


def _no_pytorch(job: Object) -> None:
    _worker(job)["template"]["spec"]["containers"][0]["name"] = "trainer"


def _master(replicas: int | None) -> Change:
    def change(job: Object) -> None:
        replica = copy.deepcopy(_worker(job))
        replica.pop("replicas")
        job["spec"]["pytorchReplicaSpecs"]["Master"] = replica | ({"replicas": replicas} if replicas else {})

    return change


def _long_name(job: Object) -> None:
    job["metadata"]["name"] = "a" * 60


def _both_nproc(job: Object) -> None:
    job["spec"]["elasticPolicy"]["nProcPerNode"] = 1


def _above(job: Object) -> None:
    job["spec"]["elasticPolicy"]["minReplicas"] = 5


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        pytest.param(_no_pytorch, True, id="no container pytorch"),
        pytest.param(_master(None), True, id="Master without replicas"),
        pytest.param(_master(2), True, id="two Masters"),
        pytest.param(_both_nproc, True, id="both nprocPerNode"),
        pytest.param(_long_name, False, id="name of 60 characters"),
        pytest.param(lambda job: _worker(job).update(restartPolicy="OnFailur"), False, id="misspelt policy"),
        pytest.param(_above, False, id="minReplicas above maxReplicas"),
    ],
)
def test_42_what_the_webhook_refuses_and_what_preflight_refuses(
    kube: Kube, cells: list[Manifests], namespace: str, change: Change, refused: bool
) -> None:
    """The webhook admits three of these, which never get their pods. Preflight admits none."""
    cell = copy.deepcopy(next(one for one in cells if one.source == CELL))
    job = cell.job()
    change(job)
    done = kube.call("create", "--dry-run=server", f"--namespace={namespace}", "-f", "-", given=json.dumps(job))
    assert (done.code != 0) == refused, done.err
    assert bool(rejections(job, LATEST)) == refused
    assert evaluate(cell).state is State.FAIL


def test_44_a_second_apply_resets_nothing_that_others_own(kube: Kube, started: Callable[..., Running]) -> None:
    """Kueue suspends a job. Applying the cell again neither resumes it nor creates a second run."""
    running = started()
    uid = running.job()["metadata"]["uid"]
    patch = json.dumps({"spec": {"runPolicy": {"suspend": True}}})
    words = ("pytorchjob", JOB, f"--namespace={running.namespace}", "--type=merge", "--field-manager=kueue")
    kube.run("patch", *words, "-p", patch)
    kube.wait("no pods", lambda: not _pods(running), 60)
    for _ in range(2):
        kube.run("apply", "--server-side", f"--namespace={running.namespace}", "-k", CELL)
    time.sleep(3)
    assert running.job()["spec"]["runPolicy"]["suspend"] is True
    assert running.job()["metadata"]["uid"] == uid
    assert not _pods(running)


def _worker(job: Object) -> Object:
    replica: Object = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    return replica


def _restart_policy(policy: str) -> Change:
    return lambda job: _worker(job).update(restartPolicy=policy)


def _run_policy(**values: int) -> Change:
    return lambda job: job["spec"]["runPolicy"].update(values)


def _pods(running: Running) -> list[Object]:
    return [pod for pod in running.kube.list("pods", running.namespace) if "deletionTimestamp" not in pod["metadata"]]
