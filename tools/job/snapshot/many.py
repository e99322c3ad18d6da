"""Takes snapshots of many jobs: their pods are listed together, and one request a job reads its run directory."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tools.core import UserError
from tools.job.snapshot import collect, pod_exec
from tools.job.snapshot.live_job import LiveJob
from tools.job.snapshot.queries import Queries
from tools.job.snapshot.snapshot import Snapshot
from tools.kube import Kubectl, Object
from tools.kube.kubectl import each
from tools.kube.selectors import labels_of

MOST = 64  # run directories that are read: each takes a request, which starts python3 in a pod
SECONDS = 5.0  # for all these requests together
LIVE = "--field-selector=status.phase!=Succeeded,status.phase!=Failed"
Pods = dict[tuple[str, str, str], list[Object]]
Runtimes = dict[tuple[str, tuple[str, str]], dict[str, list[Object]]]


@dataclass(frozen=True)
class Many:
    """Snapshots in the order of their jobs, without logs and events.

    `read` counts the jobs whose run directory was asked for and answered in time. `refused` says why those of them that
    could not be read were not. `unseen` says why pods are unknown.
    """

    snapshots: list[Snapshot]
    read: int
    refused: list[str]
    unseen: dict[str, str]


def snapshots(kubectl: Kubectl, jobs: Sequence[LiveJob]) -> Many:
    """Return snapshots of jobs that were just listed, the first ones with their run directories."""
    pods, unseen = _pods(kubectl, jobs)
    runtimes = _runtimes(kubectl, jobs)
    seen = [_snapshot(job, pods, runtimes) for job in jobs]
    end = time.monotonic() + SECONDS

    def read(one: Snapshot) -> tuple[Snapshot, bool, str | None]:
        seconds = end - time.monotonic()
        if seconds <= 0:
            return one, False, None
        unseen: dict[str, str] = {}
        try:
            running = any(pod.has_run_directory and pod.running for pod in one.pods)
            run = pod_exec.run_directory(Kubectl(kubectl.context, one.namespace), one.pods, unseen, seconds)
        except UserError as problem:  # a job of a wrong shape has no pods
            return one, True, problem.message
        refused = unseen.get("run directory") if running else None  # without such a pod nothing is expected
        return replace(one, run=run), time.monotonic() < end, refused

    asked = each(read, seen[:MOST])
    refused = [reason for _, done, reason in asked if done and reason]
    return Many([*(one for one, *_ in asked), *seen[MOST:]], sum(done for _, done, _ in asked), refused, unseen)


def _pods(kubectl: Kubectl, jobs: Sequence[LiveJob]) -> tuple[Pods, dict[str, str]]:
    """Return the pods that have not ended by namespace, label and name of their job, and why some are unknown."""
    namespace, *others = sorted({job.namespace for job in jobs}) or [""]
    queries = Queries(Kubectl(kubectl.context, None if others else namespace))
    everywhere = ["--all-namespaces"] if others else []
    labels = sorted({label for job in jobs for label in job.workload.selector})
    queries.ask({label: ("pods", f"--selector={label}", LIVE, *everywhere) for label in labels})
    found: Pods = defaultdict(list)
    for label, pods in queries.objects.items():
        for pod in pods:
            found[str(pod["metadata"].get("namespace")), label, str(labels_of(pod).get(label))].append(pod)
    refused = next(iter(queries.unseen.values()), None)
    return found, {"pods": refused} if refused else {}


def _runtimes(kubectl: Kubectl, jobs: Iterable[LiveJob]) -> Runtimes:
    """Return the runtimes of TrainJobs by namespace and reference; jobs of one runtime read it once."""
    wanted = {(job.namespace, one) for job in jobs if (one := collect.runtime(job.workload))}

    def read(one: tuple[str, tuple[str, str]]) -> dict[str, list[Object]]:
        queries = Queries(Kubectl(kubectl.context, one[0]))
        collect.read_runtime(Kubectl(kubectl.context, one[0]), one[1], queries)
        return queries.objects

    return dict(zip(wanted, each(read, wanted), strict=True))


def _snapshot(job: LiveJob, pods: Pods, runtimes: Runtimes) -> Snapshot:
    (selector,) = job.workload.selector.items()
    reference = collect.runtime(job.workload)
    objects = {"Pod": pods.get((job.namespace, *selector), [])}
    objects |= runtimes[job.namespace, reference] if reference else {}
    return Snapshot(datetime.now(UTC), job.namespace, job.workload.item, objects, owner=job.owner)
