"""`yard job` on a running job of each kind: the same commands give the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.job.corpus import STEP
from tests.job.live import FAILED, KINDS, NAMESPACE, Live, Object, condition
from tests.job.live import _pod as live_pod
from tests.job.world import NOW, ago, stamp
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job import logs, rendezvous_check, retry
from tools.job.diagnosis.explain import explain
from tools.job.ranks import rank_zero
from tools.job.snapshot import JobPod, collect, lookup
from tools.job.snapshot.live_job import kinds_called
from tools.job.snapshot.snapshot import CURRENT, OTHER
from tools.kube.kubectl import Kubectl

Play = Callable[[Live], Path]
RUN = {"env": [{"name": "TRAINYARD_RUN", "value": "/runs/x"}]}
OTHERS = [kind for kind in KINDS if kind != "PyTorchJob"]  # whose commands other tests call
PEER = "RuntimeError: Connection closed by peer [10.0.1.7]:31337"
RESOURCES = {
    "PyTorchJob": "pytorchjobs.kubeflow.org",
    "Volcano": "jobs.batch.volcano.sh",
    "JobSet": "jobsets.jobset.x-k8s.io",
    "Job": "jobs.batch",
    "HyperPodPyTorchJob": "hyperpodpytorchjobs.sagemaker.amazonaws.com",
    "TrainJob": "trainjobs.trainer.kubeflow.org",
}


@pytest.fixture
def play(world: NewWorld, cluster: Cluster) -> Play:
    """A function that makes a job the only one of the cluster; it returns the directory of the stand-in."""

    def make(live: Live) -> Path:
        home = cluster(world())
        for log in home.glob("*.log"):
            log.unlink()
        live.write(home)
        return home

    return make


def asked(home: Path) -> str:
    return (home / "asked.txt").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_every_kind_is_listed_shown_and_read(kind: str, play: Play, yard: Yard) -> None:
    live = Live(kind)
    live.logs[live.name(0)] = "".join(f"{stamp(9 - n)} {STEP.format(n=n)}\n" for n in range(3))
    live.logs[live.name(1)] = f"{stamp(9)} ready\n"
    home = play(live)
    (row,) = yard.json("list", "-n", NAMESPACE)
    assert (row["job"], row["kind"], row["state"]) == ("job", live.job.kind, "Running")
    active = "-" if kind in ("TrainJob", "HyperPodPyTorchJob") else 2
    wanted = "-" if kind == "TrainJob" else 2
    assert row["pods"] == f"{active}/{wanted}", "a list does not read the runtime of a TrainJob"
    status = yard.json("status", "-n", NAMESPACE)
    assert (status["kind"], status["state"], status["uid"]) == (live.job.kind, "Running", "uid-job")
    assert [pod["pod"] for pod in status["pods"]] == [live.name(0), live.name(1)]
    assert {pod["state"] for pod in status["pods"]} == {"Running"}
    assert (status["training"]["source"], status["training"]["step"]) == ("the pods' logs", 2)
    assert "run directory" in status["not_seen"], "it is not trainyard's trainer, and that is said"
    here, seen = collect.find(Kubectl(None, NAMESPACE), "job")
    first = rank_zero(seen)
    assert first is not None
    assert (first.pod.name, first.certain) == (live.name(0), True), "only this log has lines of rank 0"
    lines, unseen = logs.once(here, seen.pods, logs.Wanted())
    assert (len(list(lines)), unseen) == (4, {})
    assert explain(replace(seen, taken=NOW)).state is State.PASS
    container = live.job.container_of(live.pods[0])
    assert f"--container={container}" in asked(home)
    label, value = next(iter(live.job.selector.items()))
    assert f"/pods?{urlencode({'labelSelector': f'{label}={value}'})}" in asked(home)


@pytest.mark.parametrize("kind", OTHERS)
def test_the_run_directory_is_read_through_the_pods_of_every_kind(
    kind: str, play: Play, yard: Yard, tmp_path: Path
) -> None:
    """The host name in a heartbeat is not the name of a batch Job's pod."""
    live = Live(kind, container=RUN)
    home = play(live)
    for rank, pod in enumerate(live.pods):
        host = pod["spec"].get("hostname") or pod["metadata"]["name"]
        beat = {"rank": rank, "phase": "training", "step": 7, "time": 1.0, "host": host}
        path = home / f"volume/heartbeat/rank-{rank:05d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(beat))
    (home / "volume/report.json").write_text("{}")
    status = yard.json("status", "-n", NAMESPACE)
    assert [pod["ranks"] for pod in status["pods"]] == [[0], [1]]
    if kind != "Job":
        return
    words = ("exec", "job", "-n", NAMESPACE, "--json", "--rank", "1", "--", "printenv", "POD")
    assert json.loads(yard.out(*words))["stdout"] == f"{live.name(1)}\n"
    yard("cp", "job", "report.json", str(tmp_path / "out"), "-n", NAMESPACE)
    assert (tmp_path / "out/report.json").read_text() == "{}"


@pytest.mark.parametrize("kind", OTHERS)
def test_stop_suspends_or_deletes_every_kind(kind: str, play: Play, yard: Yard) -> None:
    live = Live(kind)
    live.logs[live.name(0)] = "2026-11-21T11:59:50Z checkpoint of step 40 saved\n"
    home = play(live)
    stopped = yard.json("stop", "job", "-n", NAMESPACE)
    assert (stopped["result"], stopped["step"], stopped["uid"]) == ("suspended", 40, "uid-job")
    if kind == "Volcano":
        lines = asked(home).partition("create ")[2].splitlines()  # readers of logs may ask in between
        command = json.loads(next(line for line in lines if line.startswith("{")))
        assert (command["kind"], command["action"]) == ("Command", "AbortJob")
        assert (command["target"]["uid"], command["target"]["name"]) == ("uid-job", "job")
    else:
        patch = live.job.suspend_patch(True)
        assert f"patch {RESOURCES[kind]} --type=merge --patch={json.dumps(patch)}" in asked(home)
    if kind not in ("Volcano", "JobSet"):
        return
    home = play(Live(kind))
    assert yard.json("stop", "job", "--delete", "-n", NAMESPACE, code=3)["result"] == "deleted"
    assert f"delete {RESOURCES[kind]} --wait=false -- job" in asked(home)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_failed_job_of_every_kind_is_explained_and_retried(kind: str, play: Play, yard: Yard) -> None:
    live = Live(kind, FAILED[kind])
    live.end(1, PEER)
    live.job.item["metadata"] |= {"resourceVersion": "7", "managedFields": [], "generation": 2}
    if kind == "Job":  # what the API server adds
        live.job.spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}
        labels = {"batch.kubernetes.io/controller-uid": "u", "job-name": "job", "team": "a"}
        live.job.spec["template"]["metadata"] = {"labels": labels}
    play(live)
    yard("status", "-n", NAMESPACE, code=1)
    here, seen = collect.find(Kubectl(None, NAMESPACE), "job", around=True)
    plan = retry.plan(here, seen, explain(seen), 3)
    (job,) = plan.objects.objects
    assert (plan.last.cause, plan.last.uid) == ("lost-peer", "uid-job")
    assert set(job["metadata"]) == {"name", "namespace", "annotations"}
    assert "status" not in job
    if kind == "Job":
        assert "selector" not in job["spec"]
        assert job["spec"]["template"]["metadata"]["labels"] == {"team": "a"}
    else:
        assert job["spec"] == live.job.item["spec"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "HyperPodPyTorchJob"])
def test_the_rendezvous_of_every_kind_is_found(kind: str, play: Play) -> None:
    """From the environment, or from the command; the pod of that name is found by its host name."""
    live = Live(kind)
    pod = live.pods[0]
    name = {"PyTorchJob": live.name(0), "Job": "trainers"}.get(kind, "job")
    wrong = {"kind": "Service", "metadata": {"name": name}, "spec": {"selector": {"of": "another job"}}}
    live.objects["services"] = [wrong]
    play(live)
    _, seen = collect.find(Kubectl(None, NAMESPACE), "job", logs=False, around=True)

    def states() -> dict[str, State]:
        hops = rendezvous_check.check_objects(seen, None)
        return {hop.details["hop"]: hop.state for hop in hops}

    assert rendezvous_check.rendezvous(seen).address == pod["status"]["podIP"]
    assert (states()["pod"], states()["service"]) == (State.PASS, State.FAIL)
    label, value = next(iter(pod["metadata"]["labels"].items()))
    seen.objects["Service"] = [{**wrong, "spec": {"selector": {label: value}}}]
    assert states()["service"] is State.PASS
    seen.objects["Service"] = []
    assert states()["service"] is State.FAIL


def test_an_unknown_rendezvous_is_said(play: Play, yard: Yard) -> None:
    play(Live("HyperPodPyTorchJob"))
    assert "neither the pods' environment nor their command" in yard.err("debug", "-n", NAMESPACE, code=3)


def wrapper() -> Object:
    spec = {"suspend": False, "components": [{"template": {}, "podSetInfos": [{}]}]}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "wrapped", "creationTimestamp": "2026-11-21T11:00:00Z"},
        "spec": spec,
        "status": {"phase": "Running"},
    }


def wrapped(live: Live) -> Object:
    """An AppWrapper around the live job."""
    outer = wrapper()
    outer["spec"]["components"][0]["template"] = {key: live.job.item[key] for key in ("apiVersion", "kind", "spec")} | {
        "metadata": {"name": "job"}
    }
    live.owned(outer, "appwrappers.workload.codeflare.dev")
    return outer


def test_a_volcano_job_that_waits_for_its_queue_has_no_pods_yet(play: Play, yard: Yard) -> None:
    """The job names its scheduler, and the templates of its tasks do not."""
    live = Live("Volcano", {"state": {"phase": "Pending"}})
    live.pods.clear()
    metadata = {"name": "job-uid", "ownerReferences": [{"uid": "uid-job"}]}
    live.objects["podgroups.scheduling.volcano.sh"] = [
        {"metadata": metadata, "spec": {"minMember": 2, "queue": "default"}, "status": {"phase": "Pending"}}
    ]
    live.objects["queues.scheduling.volcano.sh"] = [{"metadata": {"name": "default"}, "status": {"state": "Open"}}]
    about = {"kind": "PodGroup", "name": "job-uid"}
    full = {
        "kind": "Event",
        "metadata": {"name": "full"},
        "involvedObject": about,
        "message": "resource in cluster is overused: overused cpu",
    }
    live.objects["events"] = [full]
    play(live)
    answer = yard.json("why", "-n", NAMESPACE, code=1)
    assert (answer["cause"], answer["verdict"]) == ("queue", "FAIL")
    assert answer["evidence"][:2] == ["PodGroup job-uid: phase Pending, minMember 2", f"event: {full['message']}"]
    assert "podgroups" in answer["remedy"]


def test_a_job_in_an_appwrapper_is_listed_once_and_acts_through_it(play: Play, yard: Yard) -> None:
    live = Live("PyTorchJob")
    wrapped(live)
    home = play(live)
    (row,) = yard.json("list")
    assert (row["job"], row["kind"], row["uid"]) == ("job", "AppWrapper/PyTorchJob", "uid-job")
    for name in ("wrapped", "job", "appwrapper/wrapped", "pytorchjob/job"):
        status = yard.json("status", name)
        assert (status["job"], status["made_by"]) == ("job", "AppWrapper/wrapped"), name
    assert yard.json("stop", "job", "-n", NAMESPACE, code=3)["through"] == "AppWrapper/wrapped"
    assert 'patch appwrappers.workload.codeflare.dev --type=merge --patch={"spec": {"suspend": true}}' in asked(home)
    assert "-- wrapped" in asked(home)


def test_an_appwrapper_that_waits_has_no_job_yet(play: Play, yard: Yard) -> None:
    live = Live("PyTorchJob")
    outer = wrapped(live)
    outer["spec"]["suspend"], outer["status"] = True, {"phase": "Suspended"}
    live.objects["pytorchjobs.kubeflow.org"], live.objects["pods"] = [], []
    play(live)
    (row,) = yard.json("list")
    assert (row["job"], row["state"], row["uid"]) == ("job", "Suspended", "uid-owner")
    status = yard.json("status", "wrapped")
    assert (status["state"], status["uid"], status["pods"]) == ("Suspended", "", [])
    assert "AppWrapper/wrapped: spec.suspend: true" in yard.out("why", "wrapped", code=1)


def test_the_next_attempt_of_a_wrapped_job_is_the_wrappers(play: Play) -> None:
    live = Live("PyTorchJob", FAILED["PyTorchJob"])
    live.end(1, PEER)
    wrapped(live)
    play(live)
    here, seen = collect.find(Kubectl(None, NAMESPACE), "job", around=True)
    plan = retry.plan(here, seen, explain(seen), 3)
    (job,) = plan.objects.objects
    assert (job["kind"], job["metadata"]["name"]) == ("AppWrapper", "wrapped")
    assert "suspend" not in job["spec"]
    assert "podSetInfos" not in job["spec"]["components"][0]


def test_parts_of_a_trainjob_are_not_listed_and_act_through_it(play: Play, yard: Yard) -> None:
    live = Live("TrainJob")
    part = Live("JobSet")
    part.owned(live.job.item, live.job.resource)
    part.job.item["metadata"] |= {"uid": "uid-part"}
    job = Live("Job")
    job.owned(part.job.item, part.job.resource)
    job.job.item["metadata"] |= {"name": "job-workers-0", "uid": "uid-inner"}
    live.objects |= {part.job.resource: [part.job.item], "jobs.batch": [job.job.item]}
    home = play(live)
    assert [(row["job"], row["kind"]) for row in yard.json("list")] == [("job", "TrainJob")]
    assert yard.json("status")["kind"] == "TrainJob"
    assert yard.json("status", "jobset/job")["made_by"] == "TrainJob/job"
    yard("stop", "jobset/job", "-n", NAMESPACE, code=3)
    assert 'patch trainjobs.trainer.kubeflow.org --type=merge --patch={"spec": {"suspend": true}}' in asked(home)


def test_a_job_of_an_owner_that_is_not_read_is_not_stopped(play: Play, yard: Yard) -> None:
    live = Live("PyTorchJob")
    trial = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial", "metadata": {"name": "t"}}
    live.owned(trial, "trials.kubeflow.org")
    home = play(live)
    assert yard.json("status", "trial/t")["made_by"] == "Trial/t"
    assert "was made by Trial/t, which may make it again" in yard.err("stop", "job", "-n", NAMESPACE, code=1)
    assert "patch" not in asked(home)


def test_two_kinds_with_one_name_are_told_apart(play: Play, yard: Yard) -> None:
    live, other, third = Live("PyTorchJob"), Live("Job"), Live("Volcano")
    for one in (other, third):
        live.objects[one.job.resource] = [one.job.item]
        one.job.item["metadata"]["uid"] = f"uid-{one.job.resource}"
    play(live)
    error = yard.err("status", "job", code=2)
    assert "3 jobs called job" in error
    assert "jobs: jobs.batch.volcano.sh/job, jobs.batch/job, pytorchjobs.kubeflow.org/job" in error
    assert yard.json("status", "pytorchjob/job")["uid"] == "uid-job"
    assert yard.json("status", "jobs.batch/job")["uid"] == "uid-jobs.batch"
    assert yard.json("status", "vcjob/job")["uid"] == "uid-jobs.batch.volcano.sh"
    yard.err("status", "job/job", code=2)


def ray() -> Object:
    metadata = {"name": "tuned", "namespace": NAMESPACE, "uid": "uid-ray"}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": {}}


def test_a_kind_that_is_not_read_is_said(play: Play, yard: Yard) -> None:
    live = Live("Job")
    live.objects["rayjobs.ray.io"] = [ray()]
    play(live)
    rows = {row["job"]: row for row in yard.json("list")}
    assert rows["tuned"]["state"] == "CANNOT TELL"
    assert rows["job"]["state"] == "Running"
    for name in ("tuned", "rayjob/tuned", "rayjob/none"):
        error = yard.err("status", name, code=3)
        assert "CANNOT TELL: RayJob/" in error
        assert "kinds that are read: PyTorchJob, TrainJob, HyperPodPyTorchJob, Job, JobSet, AppWrapper" in error


def test_kinds_that_may_not_be_listed_are_not_seen(play: Play, yard: Yard) -> None:
    live = Live("Job")
    home = play(live)
    (home / "forbidden").write_text("mpijobs.kubeflow.org")
    assert "not seen: MPIJob" in yard("list").err, "no job that is read can be among them"
    (home / "forbidden").write_text("jobsets.jobset.x-k8s.io")
    printed = yard("list", code=3)
    assert "job " in printed.out
    assert "not seen: JobSet.jobset.x-k8s.io: kubectl get: Error from server (Forbidden)" in printed.err
    assert yard.json("status", "job")["state"] == "Running"
    assert "not seen: JobSet" in yard.err("status", "other", code=3)


def test_an_api_group_that_is_down_matters_only_if_it_has_jobs(play: Play, yard: Yard) -> None:
    home = play(Live("Job"))
    (home / "down").write_text("metrics.k8s.io/v1beta1")
    assert yard("list").err == ""
    (home / "down").write_text("metrics.k8s.io/v1beta1, jobset.x-k8s.io/v1alpha2")
    assert "not seen: jobset.x-k8s.io: kubectl api-resources: unable to" in yard("list", code=3).err


def test_an_ordinary_batch_job_is_not_listed(play: Play, yard: Yard) -> None:
    live = Live("Job")
    live.job.item["spec"]["completionMode"] = "NonIndexed"
    live.job.spec["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", "echo done"]
    play(live)
    assert yard.out("list") == "no job\n"
    assert yard.json("status", "job/job")["kind"] == "Job"


def test_a_pod_that_a_batch_job_replaced_counts_as_a_restart(play: Play, yard: Yard) -> None:
    live = Live("Job")
    home = play(live)
    old = json.loads(json.dumps(live.pods[0]))
    old["metadata"] |= {"name": "job-0-older", "creationTimestamp": "2026-11-21T11:00:00Z"}
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T11:40:00Z"}
    old["status"]["phase"] = "Failed"
    old["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    live.objects["pods"] = [old, *live.pods]
    live.logs["job-0-older"] = "2026-11-21T11:39:00Z before\n"
    live.write(home)
    status = yard.json("status", "job")
    assert [(pod["pod"], pod["restarts"]) for pod in status["pods"]] == [(live.name(0), 1), (live.name(1), 0)]
    assert yard.out("logs", "job", "--previous") == "pod-0 | before\n"
    live.objects["pods"] = live.pods
    live.write(home)
    assert yard.json("status", "job")["pods"][0]["restarts"] == 0, "control"


@pytest.mark.parametrize(
    ("kind", "about", "reason"),
    [
        ("JobSet", "JobSet", "JobCreationFailed"),
        ("JobSet", "JobSet", "HeadlessServiceCreationFailed"),
        ("TrainJob", "TrainJob", "TrainJobResourcesCreationFailed"),
        ("TrainJob", "JobSet", "JobCreationFailed"),
    ],
)
def test_what_may_not_be_made_below_a_job_is_refused(
    kind: str, about: str, reason: str, play: Play, yard: Yard
) -> None:
    live = Live(kind, {"restarts": 0})
    live.pods.clear()
    live.logs.clear()
    said = 'admission webhook "policy.example" denied the request: images must come from our registry'
    event = {"kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": about, "name": "job"},
             "reason": reason, "message": said, "type": "Warning", "lastTimestamp": ago(20)}  # fmt: skip
    live.objects["events"] = [event]
    play(live)
    answer = yard.json("why", f"{kind}/job", "-n", NAMESPACE, code=1)
    assert (answer["cause"], answer["evidence"]) == ("refused", [f"event: {said}"])


def test_an_initializer_that_runs_is_no_missing_rank(play: Play, yard: Yard) -> None:
    """The ranks of a TrainJob are made when its initializers have ended."""
    live = Live("TrainJob")
    ranks = list(live.pods)
    first = next(live_pod(one) for one in live.job.pods() if one.role == "dataset")
    live.pods[:] = [first]
    live.logs = {first["metadata"]["name"]: f"{stamp(400)} downloading\n"}
    live.objects["services"] = [{"kind": "Service", "metadata": {"name": "job"}}]
    play(live)
    _, seen = collect.find(Kubectl(None, NAMESPACE), "job", around=True)
    found = explain(replace(seen, taken=NOW))
    assert (found.state, found.causes) == (State.PASS, [])
    assert "dataset-0 has been running for" in found.summary
    assert explain(replace(seen, taken=NOW + timedelta(hours=1))).state is State.CANNOT_TELL
    live.pods[:] = [first, *ranks]
    play(live)
    _, seen = collect.find(Kubectl(None, NAMESPACE), "job", logs=False, around=True)
    assert rendezvous_check.rendezvous(seen).host == "job-node-0-0.job"


@pytest.mark.parametrize(
    ("status", "cause", "shown"),
    [
        ({"reason": "Evicted", "message": "The node was low on memory."}, "evicted", "pod-0 on node-9: Evicted"),
        ({"conditions": [condition("DisruptionTarget") | {"reason": "PreemptionByScheduler"}]}, "preempted", "Preempt"),
        ({}, "device", "event NvidiaXID79Error"),
    ],
)  # fmt: skip
def test_a_replaced_pod_is_judged_by_its_own_status_and_node(
    status: Object, cause: str, shown: str, play: Play, yard: Yard
) -> None:
    """Its replacement has no node yet."""
    live = Live("Job")
    home = play(live)
    old = json.loads(json.dumps(live.pods[0]))
    old["metadata"] |= {"name": "job-0-older", "uid": "uid-older", "creationTimestamp": "2026-11-21T11:00:00Z"}
    old["spec"]["nodeName"] = "node-9"
    ended = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-21T11:58:00Z"}
    old["status"] |= {"phase": "Failed", **status}
    old["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    live.pods[0]["metadata"]["creationTimestamp"] = "2026-11-21T11:58:10Z"
    live.pods[0]["status"] = {"phase": "Pending"}
    del live.pods[0]["spec"]["nodeName"]
    broken = {"kind": "Event", "metadata": {"name": "xid"}, "involvedObject": {"kind": "Node", "name": "node-9"},
              "reason": "NvidiaXID79Error", "type": "Warning", "lastTimestamp": "2026-11-21T11:57:50Z"}  # fmt: skip
    live.objects |= {"pods": [old, *live.pods], "events": [broken]}
    live.logs.clear()
    live.write(home)
    answer = yard.json("why", "job", "-n", NAMESPACE, code=1)
    assert answer["cause"] == cause
    assert any(shown in line for line in answer["evidence"])


def test_the_deadline_of_a_part_of_a_jobset_is_named(play: Play, yard: Yard) -> None:
    """The controller of Jobs has deleted the pods, and the JobSet only says that a Job has failed."""
    live = Live("JobSet", FAILED["JobSet"])
    live.pods.clear()
    live.logs.clear()
    late = {
        **condition("Failed"),
        "reason": "DeadlineExceeded",
        "message": "Job was active longer than specified deadline",
    }
    metadata = {"name": "job-workers-0", "namespace": NAMESPACE, "ownerReferences": [{"uid": "uid-job"}]}
    live.objects["jobs.batch"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}, "status": {"conditions": [late]}}
    ]
    play(live)
    answer = yard.json("why", "jobset/job", "-n", NAMESPACE, code=1)
    assert answer["cause"] == "deadline"
    assert answer["evidence"][1].startswith("Job job-workers-0: DeadlineExceeded")


class Kubelet(Kubectl):
    """Answers `logs` as a kubelet does: the last lines, of which --limit-bytes keeps the first."""

    log = ""

    def text(self, *words: str, **_: Any) -> str:
        options = dict(word.split("=") for word in words if "=" in word)
        tail = "".join(self.log.splitlines(keepends=True)[-int(options["--tail"]) :])
        return tail.encode()[: int(options["--limit-bytes"])].decode("utf-8", "ignore")


def test_the_end_of_a_log_is_read_as_far_back_as_the_first_failure() -> None:
    live = Live("Job", FAILED["Job"])
    live.end(1)
    pods = [JobPod(one, live.job) for one in live.pods]
    kubelet = Kubelet()
    first = "2026-11-21T11:58:00Z torch.OutOfMemoryError: CUDA out of memory."
    kubelet.log = "\n".join([first, *["2026-11-21T11:58:01Z frame #7: c10d::run() + 0x12 (libtorch.so)"] * 900])
    assert first in collect._logs(kubelet, pods, 32, {})[0].text
    live.end(0)
    assert first not in collect._logs(kubelet, pods, 32, {})[0].text, "control: of a pod that ended well less is read"
    live.end(1)
    bar = "2026-11-21T11:50:00Z " + "\r 12%|█▏        | 12/100 [00:10<01:10, 1.2it/s]" * 300
    kubelet.log = "\n".join([*[bar] * 1200, first])
    assert collect._logs(kubelet, pods, 32, {})[0].text.endswith(first), "the newest lines count"


def test_the_log_of_a_failed_sidecar_does_not_replace_that_of_the_training() -> None:
    class Containers(Kubectl):
        """Answers `logs` with the name of the container."""

        def text(self, *words: str, **_: Any) -> str:
            return next(word for word in words if word.startswith("--container="))

    live = Live("Job", FAILED["Job"])
    live.end(0)
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    for one in live.pods:
        one["status"] |= {"phase": "Failed"}
        one["status"]["containerStatuses"].append({"name": "shipper", "state": ended})
    found = collect._logs(Containers(), [JobPod(one, live.job) for one in live.pods[:1]], 32, {})
    assert {log.which: log.text.partition("=")[2] for log in found} == {CURRENT: "main", OTHER: "shipper"}


def test_a_runtime_that_cannot_be_read_leaves_the_number_of_pods_unknown(play: Play, yard: Yard) -> None:
    live = Live("TrainJob")
    live.objects["clustertrainingruntimes.trainer.kubeflow.org"] = []
    play(live)
    assert yard.json("status")["pods_wanted"] is None
    assert "how many it asks for is unknown" in yard.out("status")
    assert "its pod template is unknown" in yard.err("tensorboard", "--no-forward", "-n", NAMESPACE, code=3)


def test_the_names_of_kinds_are_kubectls() -> None:
    assert kinds_called("job") == {"Job.batch", "Job.batch.volcano.sh"}
    assert kinds_called("jobs.batch") == kinds_called("job.batch") == {"Job.batch"}
    assert kinds_called("JobSet") == kinds_called("jobsets.jobset.x-k8s.io") == {"JobSet.jobset.x-k8s.io"}
    assert kinds_called("cpu") == set()


def test_a_cell_that_is_a_directory_is_not_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not lookup.is_cell("jobset/x")
    assert lookup.is_cell("cpu/llama-tiny")
    (tmp_path / "jobset/x").mkdir(parents=True)
    (tmp_path / "jobset/x/kustomization.yaml").write_text("resources: []\n")
    assert lookup.is_cell("jobset/x")


def test_a_snapshot_of_another_kind_is_refused(tmp_path: Path, yard: Yard) -> None:
    value = {"taken": "2026-11-21T12:00:00+00:00", "namespace": "n", "job": ray()}
    (tmp_path / "snapshot.json").write_text(json.dumps(value))
    assert "the kind RayJob is not read" in yard.err("why", "--from", str(tmp_path), code=3)


def test_nothing_listed_is_an_error(play: Play, yard: Yard) -> None:
    home = play(Live("Job"))
    (home / "forbidden").write_text("jobs.batch")
    with pytest.raises(UserError, match="Forbidden") as refused:
        lookup.jobs(Kubectl())
    assert refused.value.code == 3
    yard.err("list", code=3)
