"""Where the ranks of a job meet: a Service, a pod's name in DNS, a launcher's address."""

from __future__ import annotations

import copy

import pytest

from tests.workload.beds import BEDS, INDEX, JOB_RUN, SERVICE, Object, bed, of, template
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.simulator import wiring
from tools.workload import kinds


@pytest.mark.parametrize(
    ("service", "change", "state", "reason"),
    [
        (SERVICE, {}, State.PASS, "forms one world"),
        (None, {}, State.CANNOT_TELL, "Service trainers is not in the file"),
        (None, {"completions": 4}, State.FAIL, "4 indices, of which 2 run at a time"),
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


def test_a_fault_is_reported_where_the_service_is_not_in_the_file() -> None:
    job, _ = bed("Job")
    crowded = template([*JOB_RUN[:-1], "--nproc-per-node=8", JOB_RUN[-1]], subdomain="trainers")
    crowded["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 4}}
    job["spec"]["template"] = crowded
    found = wiring.analyse(of([job]))
    assert found.verdict.state is State.FAIL
    assert "8 processes share 4 GPUs" in found.verdict.summary
    assert found.verdict.evidence[-1] == "unknown: the headless Service trainers is not in the file"
    assert not found.one_world
    assert [node.processes for node in found.nodes] == [8, 8]


def test_a_host_that_another_file_may_define_is_unknown() -> None:
    job, _ = bed("Job")
    words = [word.replace("job-0.trainers", "master") for word in JOB_RUN]
    job["spec"]["template"] = template(words, subdomain="trainers")
    assert wiring.analyse(of([job])).verdict.state is State.CANNOT_TELL


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
