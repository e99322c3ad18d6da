"""What each kind of job says of its pods, labels, state, suspension and retries."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.workload.beds import BEDS, INDEX, Object, bed, made, of, template, values
from tools.core.verdict import State
from tools.simulator import wiring


@pytest.mark.parametrize(
    ("name", "pods", "host", "env", "container"),
    [
        (
            "PyTorchJob",
            ["job-worker-0", "job-worker-1"],
            "job-worker-0",
            {"PET_NNODES": "2:4", "PET_RDZV_ENDPOINT": "job-worker-0:23456"},
            "pytorch",
        ),
        (
            "Volcano",
            ["job-worker-0", "job-worker-1"],
            "job-worker-0.job",
            {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job"},
            "main",
        ),
        (
            "JobSet",
            ["job-workers-0-0", "job-workers-0-1"],
            "job-workers-0-0.job",
            {"JOB_COMPLETION_INDEX": "1"},
            "main",
        ),
        ("Job", ["job-0", "job-1"], "job-0.trainers", {"JOB_COMPLETION_INDEX": "1"}, "main"),
        ("HyperPodPyTorchJob", ["job-pod-0", "job-pod-1"], None, {}, "main"),
        (
            "TrainJob",
            ["job-node-0-0", "job-node-0-1"],
            "job-node-0-0.job",
            {
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "4",
                "PET_NODE_RANK": "1",
                "PET_MASTER_ADDR": "job-node-0-0.job",
                "PET_MASTER_PORT": "29500",
                "A": "1",
            },
            "node",
        ),
    ],
)
def test_pods(name: str, pods: list[str], host: str | None, env: dict[str, str], container: str) -> None:
    workload = of(bed(name))
    ranks = workload.ranks()
    assert [pod.name for pod in ranks] == pods
    assert [pod.index for pod in ranks] == [0, 1]
    assert ranks[0].hosts == ((host,) if host else ())
    assert env.items() <= values(workload, 1).items()
    assert ranks[0].container["name"] == workload.container == container
    assert workload.trains
    assert workload.refused == []
    assert sum(role.replicas for role in workload.roles if role.trains) == 2


@pytest.mark.parametrize("name", [name for name in BEDS if name != "HyperPodPyTorchJob"])
def test_the_pods_of_each_kind_form_one_world(name: str) -> None:
    analysis = wiring.analyse(of(bed(name)))
    assert analysis.verdict.state is State.PASS, analysis.verdict
    assert len(analysis.nodes) == 2


@pytest.mark.parametrize(
    ("name", "selector", "resource", "patch", "limit"),
    [
        (
            "PyTorchJob",
            {"training.kubeflow.org/job-name": "job"},
            "pytorchjobs.kubeflow.org",
            {"spec": {"runPolicy": {"suspend": True}}},
            ("spec.runPolicy.backoffLimit", 6),
        ),
        ("Volcano", {"volcano.sh/job-name": "job"}, "jobs.batch.volcano.sh", None, ("spec.maxRetry", 5)),
        (
            "JobSet",
            {"jobset.sigs.k8s.io/jobset-name": "job"},
            "jobsets.jobset.x-k8s.io",
            {"spec": {"suspend": True}},
            ("spec.failurePolicy.maxRestarts", 3),
        ),
        (
            "Job",
            {"batch.kubernetes.io/job-name": "job"},
            "jobs.batch",
            {"spec": {"suspend": True}},
            ("spec.backoffLimit", 6),
        ),
        (
            "HyperPodPyTorchJob",
            {"HPJob": "job"},
            "hyperpodpytorchjobs.sagemaker.amazonaws.com",
            {"spec": {"runPolicy": {"suspend": True}}},
            ("spec.runPolicy.jobMaxRetryCount", 10),
        ),
        (
            "TrainJob",
            {"jobset.sigs.k8s.io/jobset-name": "job"},
            "trainjobs.trainer.kubeflow.org",
            {"spec": {"suspend": True}},
            ("ClusterTrainingRuntime/torch: spec.template.spec.failurePolicy.maxRestarts", 1),
        ),
    ],
)
def test_selection_suspension_and_retries(
    name: str, selector: Object, resource: str, patch: Object | None, limit: tuple[str, int]
) -> None:
    workload = of(bed(name))
    assert workload.resource == resource
    assert workload.selector == selector
    assert (workload.retries.path, workload.retries.limit) == limit
    assert workload.suspend_patch(True) == patch
    assert not workload.suspended
    if patch is None:
        return
    item = copy.deepcopy(workload.item)
    target, source = item["spec"], patch["spec"]
    target |= {key: {**target.get(key, {}), **new} if isinstance(new, dict) else new for key, new in source.items()}
    item["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    suspended = of([item, *workload.manifests.objects[1:]])
    assert suspended.suspended
    assert suspended.queue == "team"
    assert len(suspended.ranks()) == 2, "the pods of the started job"
    assert any("suspended" in line for line in wiring.analyse(suspended).verdict.evidence)


def conditions(*kinds: str) -> Object:
    return {"conditions": [{"type": kind, "status": "True"} for kind in kinds]}


@pytest.mark.parametrize(
    ("name", "status", "state"),
    [
        *((name, {}, "New") for name in BEDS),
        ("PyTorchJob", conditions("Created", "Running"), "Running"),
        ("PyTorchJob", conditions("Created", "Restarting"), "Restarting"),
        ("PyTorchJob", conditions("Created", "Running", "Failed"), "Failed"),
        ("PyTorchJob", conditions("Created", "Suspended"), "Suspended"),
        ("PyTorchJob", {"conditions": [{"type": "Running", "status": "False"}]}, "Created"),
        ("PyTorchJob", {"conditions": [5, None]}, "Created"),
        ("Volcano", {"state": {"phase": "Pending"}}, "Created"),
        ("Volcano", {"state": {"phase": "Completed"}}, "Succeeded"),
        ("Volcano", {"state": {"phase": "Aborted"}}, "Suspended"),
        ("Volcano", {"state": {"phase": "Restarting"}}, "Restarting"),
        ("Volcano", {"state": {"phase": "Terminated"}}, "Failed"),
        ("Volcano", {"state": "x"}, "Created"),
        ("JobSet", {"replicatedJobsStatus": [{"name": "workers", "active": 1}]}, "Running"),
        ("JobSet", {"replicatedJobsStatus": [{"name": "workers", "active": 0}]}, "Created"),
        ("JobSet", conditions("StartupPolicyCompleted", "Completed"), "Succeeded"),
        ("JobSet", conditions("RestartingJobSet"), "Restarting"),
        ("Job", {"active": 2}, "Running"),
        ("Job", conditions("SuccessCriteriaMet", "Complete"), "Succeeded"),
        ("Job", conditions("FailureTarget"), "Failed"),
        ("Job", conditions("Suspended"), "Suspended"),
        ("HyperPodPyTorchJob", conditions("Created", "Running", "Completed"), "Succeeded"),
        ("HyperPodPyTorchJob", conditions("Created", "Failed", "Running"), "Running"),
        ("TrainJob", conditions("Complete"), "Succeeded"),
        ("TrainJob", {"jobsStatus": [{"name": "node", "active": 1}]}, "Running"),
    ],
)
def test_state(name: str, status: Object, state: str) -> None:
    objects = bed(name)
    objects[0]["status"] = status
    assert of(objects).state == state


JOBSET_LABELS = {"jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "0"}


@pytest.mark.parametrize(
    ("name", "pod", "labels", "place", "rank_zero"),
    [
        ("PyTorchJob", "p", {"replica-type": "worker", "replica-index": "1"}, ("worker", 1), False),
        ("PyTorchJob", "p", {"replica-type": "worker", "replica-index": "0"}, ("worker", 0), None),
        ("PyTorchJob", "p", {"replica-type": "master", "replica-index": "0"}, ("master", 0), True),
        ("Volcano", "job-worker-1", {"volcano.sh/task-spec": "worker"}, ("worker", 1), False),
        ("JobSet", "p", {**JOBSET_LABELS, INDEX: "1"}, ("workers", 1), False),
        ("JobSet", "p", {**JOBSET_LABELS, INDEX: "0"}, ("workers", 0), None),
        ("JobSet", "p", {**JOBSET_LABELS, INDEX: "9" * 30}, ("workers", 0), None),
        ("Job", "p", {INDEX: "1"}, ("pod", 1), False),
        ("HyperPodPyTorchJob", "job-pod-1", {"HPJob": "job"}, ("pod", 1), False),
        ("TrainJob", "p", {"jobset.sigs.k8s.io/replicatedjob-name": "node", INDEX: "0"}, ("node", 0), True),
        (
            "TrainJob",
            "p",
            {"jobset.sigs.k8s.io/replicatedjob-name": "dataset", INDEX: "0"},
            ("dataset", 0),
            False,
        ),
    ],
)
def test_live_pods(name: str, pod: str, labels: dict[str, str], place: tuple[str, int], rank_zero: bool | None) -> None:
    prefix = "training.kubeflow.org/" if name == "PyTorchJob" else ""
    live = {"metadata": {"name": pod, "labels": {prefix + key: text for key, text in labels.items()}}}
    workload = of(bed(name))
    assert (workload.role_of(live), workload.index_of(live)) == place
    assert workload.is_rank_zero(live) is rank_zero


@pytest.mark.parametrize(
    ("labels", "metadata"), [(5, {}), ({"a": 5}, {}), ({}, {"annotations": []}), ([], {"name": None})]
)
@pytest.mark.parametrize("name", BEDS)
def test_labels_of_a_wrong_type_name_no_role(name: str, labels: Any, metadata: Object) -> None:
    pod = {"metadata": {"name": "x", "labels": labels, **metadata}}
    assert of(bed(name)).index_of(pod) == 0


def test_a_jobset_numbers_pods_through_its_jobs() -> None:
    objects = bed("JobSet")
    objects[0]["spec"]["replicatedJobs"][0]["replicas"] = 2
    workload = of(objects)
    pods = workload.pods()
    assert [pod.name for pod in pods] == [f"job-workers-{job}-{pod}" for job in (0, 1) for pod in (0, 1)]
    assert [pod.index for pod in pods] == [0, 1, 2, 3]
    assert [workload.index_of({"metadata": {"labels": pod.labels}}) for pod in pods] == [0, 1, 2, 3]
    assert pods[3].labels["jobset.sigs.k8s.io/coordinator"] == "job-workers-0-0.job"
    verdict = wiring.analyse(workload).verdict
    assert verdict.state is State.FAIL, "four pods, --nnodes=2"


def test_roles_that_start_no_launcher_are_not_ranks() -> None:
    objects = bed("JobSet")
    driver = {"name": "driver", "template": {"spec": {"template": template(["python", "serve.py"])}}}
    objects[0]["spec"]["replicatedJobs"].insert(0, driver)
    workload = of(objects)
    assert [(role.name, role.trains) for role in workload.roles] == [("driver", False), ("workers", True)]
    assert len(workload.pods()) == 3
    assert workload.is_rank_zero({"metadata": {"labels": {**JOBSET_LABELS, INDEX: "0"}}}) is None
    assert wiring.analyse(workload).verdict.state is State.PASS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"replicatedJobs": [{"name": "w" * 60}]}, "at most 63 characters"),
        ({"coordinator": {"replicatedJob": "leader"}}, "'leader' is not one of"),
        ({"replicatedJobs": [{"completions": None}]}, "completions: must be set"),
    ],
)
def test_what_jobset_refuses(change: Object, reason: str) -> None:
    objects = bed("JobSet")
    spec = objects[0]["spec"]
    for one in change.pop("replicatedJobs", []):
        spec["replicatedJobs"][0] |= {key: text for key, text in one.items() if key == "name"}
        spec["replicatedJobs"][0]["template"]["spec"] |= {key: x for key, x in one.items() if key != "name"}
    spec |= change
    assert reason in " ".join(of(objects).refused)


def test_volcanos_pytorch_plugin_sets_ranks() -> None:
    (job,) = bed("Volcano")
    spec = job["spec"]
    spec["plugins"] = {"pytorch": ["--master=leader", "--worker=worker", "--port=4000"]}
    spec["tasks"] = [
        {"name": "leader", "replicas": 1, "template": template(["python", "a.py"])},
        {"name": "worker", "replicas": 2, "template": template(["python", "a.py"])},
    ]
    workload = of([job])
    found = [values(workload, index) for index in range(3)]
    assert [one["RANK"] for one in found] == ["0", "1", "2"]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"], one["WORLD_SIZE"]) for one in found} == {
        ("job-leader-0.job", "4000", "3")
    }
    assert wiring.analyse(workload).verdict.state is State.PASS
    pod = {"metadata": {"name": "job-leader-0", "labels": {"volcano.sh/task-spec": "leader"}}}
    assert workload.is_rank_zero(pod) is True


def test_volcano_mounts_the_volumes_of_the_job() -> None:
    (job,) = bed("Volcano")
    job["spec"]["volumes"] = [{"mountPath": "/data", "volumeClaimName": "data"}, {"mountPath": "/tmp/x"}]
    (role,) = of([job]).roles
    assert [one["mountPath"] for one in role.template["spec"]["containers"][0]["volumeMounts"]] == [
        "/data",
        "/tmp/x",
    ]
    assert role.template["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}


@pytest.mark.parametrize(
    ("command", "volumes", "trains"),
    [
        (["python", "report.py"], [], False),
        (["bash", "-c", "cd /x && accelerate launch a.py"], [], True),
        (["bash", "/scripts/run.sh"], [{"name": "s", "configMap": {"name": "scripts"}}], True),
        (["bash", "/scripts/run.sh"], [{"name": "s", "configMap": {"name": "other"}}], False),
    ],
)
def test_a_job_that_starts_a_launcher_trains(command: list[str], volumes: list[Object], trains: bool) -> None:
    job = made("batch/v1", "Job", {"template": template(command, volumes=volumes)})
    data = {"run.sh": "exec torchrun train.py"}
    scripts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": data}
    assert of([job, scripts]).trains is trains


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (["make", "train"], State.CANNOT_TELL),
        (["xargs", "-a", "/hosts", "python", "a.py"], State.CANNOT_TELL),
        (["python", "-u", "-c", "import os; os.system('torchrun a.py')"], State.CANNOT_TELL),
        (["sh", "-c", "nvidia-smi; sleep infinity"], None),
    ],
)
def test_a_program_that_may_train_is_never_passed_over(command: list[str], state: State | None) -> None:
    job = made("batch/v1", "Job", {"parallelism": 2, "completions": 2, "template": template(command)})
    workload = of([job])
    verdict = wiring.analyse(workload).verdict if workload.trains else wiring.unseen(workload)
    assert (verdict.state if verdict else None) is state
