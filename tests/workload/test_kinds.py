"""What each kind of job says of its pods, labels, state, suspension and retries."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.workload.beds import BEDS, JOB_RUN, RUNTIME, SERVICE, Object, bed, made, template
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse
from tools.simulator import environment, wiring
from tools.workload import kinds
from tools.workload.pod import PodsUnknown
from tools.workload.workload import Workload


def of(objects: list[Object]) -> Workload:
    """Return the only workload of some objects."""
    (workload,) = kinds.find(Manifests("here", objects)).workloads
    return workload


def values(workload: Workload, index: int) -> dict[str, str]:
    """Return the variables of a rank's container as the kubelet resolves them."""
    pod = workload.ranks()[index]
    return environment.resolve(pod, pod.container, workload.manifests, share=1).values


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
INDEX = "batch.kubernetes.io/job-completion-index"


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


@pytest.mark.parametrize(
    ("service", "change", "state", "reason"),
    [
        (SERVICE, {}, State.PASS, "forms one world"),
        (None, {}, State.CANNOT_TELL, "Service trainers is not in the file"),
        ({"clusterIP": None}, {}, State.FAIL, "is not headless"),
        ({"selector": {"job-name": "other"}}, {}, State.FAIL, "does not select the job's pods"),
        (
            SERVICE,
            {"completionMode": "NonIndexed"},
            State.FAIL,
            "'$(JOB_COMPLETION_INDEX)' is not an integer",
        ),
        (SERVICE, {"template": template(JOB_RUN)}, State.FAIL, "subdomain is not set"),
    ],
)
def test_an_indexed_job_needs_a_headless_service(
    service: Object | None, change: Object, state: State, reason: str
) -> None:
    job, right = bed("Job")
    job["spec"] |= change
    spec = {} if service in (None, SERVICE) else service
    services = [] if service is None else [{**right, "spec": {**right["spec"], **(spec or {})}}]
    verdict = wiring.analyse(of([job, *services])).verdict
    assert verdict.state is state, verdict
    assert reason in verdict.summary


def test_the_rendezvous_may_be_a_service_of_the_first_pod() -> None:
    job, right = bed("Job")
    words = [word.replace("job-0.trainers", "master") for word in JOB_RUN]
    job["spec"]["template"] = template(words)
    master = {**right, "metadata": {"name": "master"}, "spec": {"selector": {"job-name": "job", INDEX: "0"}}}
    assert wiring.analyse(of([job, master])).verdict.state is State.PASS
    master["spec"]["selector"] = {"job-name": "job"}
    verdict = wiring.analyse(of([job, master])).verdict
    assert verdict.state is State.FAIL
    assert "stands for 2 pods" in verdict.summary


@pytest.mark.parametrize("name", ["svc", "default"])
def test_a_subdomain_may_be_named_as_a_part_of_the_domain(name: str) -> None:
    job, service = bed("Job")
    words = [word.replace("job-0.trainers", f"job-0.{name}") for word in JOB_RUN]
    job["spec"]["template"] = template(words, subdomain=name, restartPolicy="Never")
    assert wiring.analyse(of([job, {**service, "metadata": {"name": name}}])).verdict.state is State.PASS


@pytest.mark.parametrize("name", ["JobSet", "Volcano"])
def test_a_pods_name_without_its_subdomain_is_not_in_dns(name: str) -> None:
    objects = bed(name)
    workload = of(objects)
    pods = workload.ranks()
    words = ["torchrun", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={pods[0].name}:5", "a.py"]
    for role in workload.roles:
        if role.trains:
            role.template["spec"]["containers"][0]["command"] = words
    verdict = wiring.analyse(of(workload.manifests.objects)).verdict
    assert verdict.state is State.FAIL
    assert f"{pods[0].name} is not a name in DNS" in verdict.summary


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
    ("change", "processes"),
    [
        ({"numProcPerNode": 4}, "4"),
        ({}, "1"),
        ({"resourcesPerNode": {"requests": {"cpu": "3500m"}}}, "4"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "3"}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 0}, "requests": {"cpu": "3"}}}, "3"),
    ],
)
def test_trainer_counts_processes(change: Object, processes: str) -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"] = {"numNodes": 2, **change}
    assert values(of([job, runtime]), 0)["PET_NPROC_PER_NODE"] == processes


def test_trainer_counts_by_the_jobs_own_resources_alone() -> None:
    """torch.go of 2.3.0 does not look at the runtime's resources, which the container keeps, where the job has some."""
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"] = {"numNodes": 2, "resourcesPerNode": {"requests": {"cpu": "2"}}}
    spec = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    found = of([job, runtime])
    assert values(found, 0)["PET_NPROC_PER_NODE"] == "2"
    assert found.ranks()[0].container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_a_variable_that_a_trainjob_changes_keeps_its_place() -> None:
    """$(NAME) refers only to variables above it."""
    job, runtime = bed("TrainJob")
    spec = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    spec["containers"][0]["env"] = [{"name": "A", "value": "0"}, {"name": "B", "value": "$(A)"}]
    assert [one["name"] for one in of([job, runtime]).ranks()[0].container["env"]][:2] == ["A", "B"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"runtimeRef": {"name": "torch-distributed"}},
            "ClusterTrainingRuntime/torch-distributed, which is not in",
        ),
        (
            {"runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}},
            "TrainingRuntime/torch, which is not in",
        ),
        ({"runtimePatches": [{"manager": "a/b"}]}, "spec.runtimePatches changes the pods"),
    ],
)
def test_a_trainjob_whose_pods_are_unknown(change: Object, reason: str) -> None:
    job, runtime = bed("TrainJob")
    job["spec"] |= change
    workload = of([job, runtime])
    with pytest.raises(PodsUnknown, match=reason.replace("(", r"\(")):
        workload.pods()
    assert wiring.analyse(workload).verdict.state is State.CANNOT_TELL


def test_trainer_injects_nothing_without_spec_trainer() -> None:
    job, runtime = bed("TrainJob")
    del job["spec"]["trainer"]
    runtime["spec"]["mlPolicy"]["numNodes"] = 2
    found = of([job, runtime])
    assert "PET_NNODES" not in values(found, 0)
    verdict = wiring.analyse(found).verdict
    assert (verdict.state, str(verdict.remedy).partition(":")[0]) == (State.FAIL, "add spec.trainer")


def test_trainer_refuses_its_own_variables() -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"]["env"] = [{"name": "PET_NNODES", "value": "3"}]
    assert of([job, runtime]).refused == ["spec.trainer.env: PET_NNODES is reserved for Trainer"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"replicas": 2}, "spec.template.spec.replicatedJobs[1].replicas: must be 1; spec.trainer.numNodes"),
        (
            {"name": "main"},
            "spec.template.spec.replicatedJobs[1].template.spec.template.spec.containers: one must have",
        ),
    ],
)
def test_trainers_webhook_refuses_a_runtime(change: Object, fault: str) -> None:
    job, runtime = bed("TrainJob")
    replicated = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]
    (
        replicated if "replicas" in change else replicated["template"]["spec"]["template"]["spec"]["containers"][0]
    ).update(change)
    (refused,) = of([job, runtime]).refused
    assert refused.startswith(f"ClusterTrainingRuntime/torch: {fault}")


def test_what_hyperpods_operator_sets_is_unknown() -> None:
    (job,) = bed("HyperPodPyTorchJob")
    job["spec"]["replicaSpecs"][0]["template"] = template(["torchrun", "--rdzv-backend=c10d", "a.py"])
    verdict = wiring.analyse(of([job])).verdict
    assert verdict.state is State.CANNOT_TELL
    assert "HyperPod operator's own variables" in verdict.summary
    job["spec"]["replicaSpecs"][0]["template"] = template(["torchrun", "--standalone", "a.py"])
    verdict = wiring.analyse(of([job])).verdict
    assert (verdict.state, "2 separate jobs" in verdict.summary) == (State.FAIL, True), "variables do not change that"
    job["spec"]["replicaSpecs"][0]["template"] = template(["hyperpodrun", "--nnodes=3", "a.py"])
    verdict = wiring.analyse(of([job])).verdict
    assert verdict.state is State.WARN
    assert "hyperpodrun ignores --nnodes 3: the operator says 2" in verdict.summary
    job["kind"] = "HyperPodPytorchJob"  # as AWS's pages spell it
    assert of([job]).kind == "HyperPodPyTorchJob"


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


WRONG: tuple[Any, ...] = (None, 5, "x", True, [], [5], {}, {"a": 5}, [[]], [{}], [None])


@pytest.mark.parametrize("name", BEDS)
def test_a_value_of_a_wrong_type_anywhere_is_one_error(name: str) -> None:
    """Each field of each bed in turn gets values of other types: no exception but the one error."""
    seen = 0
    for place in list(places(bed(name)[0]["spec"])):
        for wrong in WRONG:
            objects = bed(name)
            target: Any = objects[0]["spec"]
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = copy.deepcopy(wrong)
            workload = of(objects)
            verdict = wiring.analyse(workload).verdict
            assert workload.state == "New"
            assert workload.retries.path
            if workload.misshapen and name != "PyTorchJob":
                seen += 1
                assert verdict.state is State.FAIL, (place, wrong, verdict)
                assert workload.misshapen[0].path in verdict.summary
                with pytest.raises(UserError, match="must be"):
                    workload.pods()
    assert seen > 20 or name == "PyTorchJob"


def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Yield the paths of all values in a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("name", BEDS)
def test_a_live_object_with_too_many_pods_is_one_error(name: str) -> None:
    text = str(bed(name)).replace("'replicas': 2", "'replicas': 5000")
    text = text.replace("'parallelism': 2", "'parallelism': 5000").replace("'completions': 2", "'completions': 5000")
    objects = eval(text.replace("'numNodes': 2", "'numNodes': 5000"))
    with pytest.raises(UserError, match=r"the job has 5,00[01] pods"):
        of(objects).pods()


def test_a_fault_outside_the_pods_is_one_verdict() -> None:
    (job,) = bed("PyTorchJob")
    job["metadata"]["annotations"] = {"sagemaker.amazonaws.com/enable-job-auto-resume": True}
    verdict = wiring.analyse(of([job])).verdict
    assert verdict.state is State.FAIL
    assert "must be a string in quotes" in verdict.summary


def test_a_manifest_with_a_billion_pods_is_refused() -> None:
    text = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: x}\n"
    with pytest.raises(UserError, match="numNodes is 1e"):
        parse(text + "spec: {runtimeRef: {name: a}, trainer: {numNodes: 1000000000}}", "here")


def test_a_runtime_is_judged_with_its_trainjob() -> None:
    alone = kinds.find(Manifests("here", [copy.deepcopy(RUNTIME)]))
    assert [one.reason for one in alone.unknown] == ["no TrainJob of the file uses this runtime"]
    assert kinds.find(Manifests("here", bed("TrainJob"))).unknown == []


def test_the_name_of_an_indexed_jobs_pod_has_a_random_end_and_its_host_name_has_none() -> None:
    def analysed(rank: str) -> wiring.Analysis:
        name = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        script = f"torchrun --nnodes=2 --node-rank={rank} --master-addr=job-0.trainers train.py"
        job = copy.deepcopy(BEDS["Job"][0])
        container = job["spec"]["template"]["spec"]["containers"][0]
        container |= {"command": ["bash", "-c", script], "env": [name]}
        return wiring.analyse(kinds.find(Manifests("here", [job, SERVICE])).workloads[0])

    assert analysed("${HOSTNAME##*-}").verdict.state is State.PASS
    assert analysed("$(hostname | awk -F- '{print $NF}')").verdict.state is State.PASS
    assert analysed("${POD##*-}").verdict.state is State.FAIL


def test_advice_on_a_rendezvous_is_that_of_the_kind() -> None:
    job = copy.deepcopy(BEDS["Volcano"][0])
    job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"] = ["torchrun", "train.py"]
    verdict = wiring.analyse(kinds.find(Manifests("here", [job])).workloads[0]).verdict
    assert verdict.state is State.FAIL
    assert "a Job gives the launcher no rendezvous" in verdict.summary
    assert "elasticPolicy" not in f"{verdict.summary} {verdict.remedy}"
