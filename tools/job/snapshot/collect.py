"""Takes a snapshot of a job from a live cluster."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from tools.core import UserError, command_line
from tools.job.snapshot import lookup, pod_exec
from tools.job.snapshot.kinds import CLAIMS, GANGS, GLOBAL, KUEUE, NAMESPACED, RUNTIMES
from tools.job.snapshot.live_job import LiveJob
from tools.job.snapshot.pod import JobPod, claim_names, template_specs
from tools.job.snapshot.queries import Queries
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import CURRENT, LARGEST_LOG, OTHER, PREVIOUS, Log, Snapshot
from tools.kube import Kubectl, Object, name_of
from tools.kube.kubectl import each
from tools.workload import Workload
from tools.workload.workload import QUEUE_LABEL

TAIL = 400  # lines of each log
# Of the first failed pods more: each of eight ranks prints a traceback and frames of C++, and the first is the cause.
FAILED_TAIL, FAILED_PODS = 2000, 8
LEAST_TAIL = 100  # lines of a log whose lines are too long for LARGEST_LOG: progress bars are long
LOGS = 32  # pods whose logs are read; in a larger job the failed ones come first
FEW_LOGS = 8  # of a job whose run directory has its progress
LOG_SECONDS, BEGUN_SECONDS = 20.0, 3.0  # for one log; after these no other is begun
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
LIVE = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
NODE_EVENTS = "events of nodes"
CLUSTER_NAMESPACE = "default"  # holds the events about objects without a namespace


def find(
    kubectl: Kubectl, text: str | None, *, logs: bool = True, run: bool = True, around: bool = False
) -> tuple[Kubectl, Snapshot]:
    """Collect the job that `text` names; the returned Kubectl is in the job's namespace."""
    snapshot = collect(kubectl, lookup.find(kubectl, text), logs=logs, run=run, around=around)
    return Kubectl(kubectl.context, snapshot.namespace), snapshot


def collect(
    kubectl: Kubectl, wanted: LiveJob, *, logs: bool = True, run: bool = True, around: bool = False
) -> Snapshot:
    """Return the cluster's objects, logs and run directory that concern a job.

    Without `around` these are the job, its pods and their events, which say how it is; the diagnosis also needs
    nodes, volumes, queues and the pods of others. Raises UserError if the job itself cannot be read. The reason
    for anything else is in `unseen`.
    """
    live = lookup.again(kubectl, wanted)
    here = Kubectl(kubectl.context, live.namespace)
    queries = Queries(here)
    queries.ask({"Pod": ("pods", command_line.selectors(live.workload.selector))})
    if wanted_runtime := runtime(live.workload):
        read_runtime(here, wanted_runtime, queries)
    queries.objects.setdefault("Pod", [])
    seen = Snapshot(datetime.now(UTC), live.namespace, live.workload.item, queries.objects, owner=live.owner)
    most = LOGS if around or not any(pod.has_run_directory for pod in seen.pods) else FEW_LOGS
    no_logs: dict[str, str] = {}
    no_run: dict[str, str] = {}
    with ThreadPoolExecutor(2) as pool:  # while the kubelets answer, the API server lists
        reading = pool.submit(_logs, here, seen.pods, most if logs else 0, no_logs)
        asking = pool.submit(pod_exec.run_directory, here, seen.pods, no_run) if run else None
        others = _around(queries, here, seen) if around else []
        if not around:
            queries.ask({"Event": ("events",), **_parts(seen.workload)})
        return replace(
            seen,
            logs=reading.result(),
            run=asking.result() if asking else None,
            others=others,
            unseen=queries.unseen | no_logs | no_run,
        )


def _around(queries: Queries, here: Kubectl, seen: Snapshot) -> list[Object]:
    """Ask for what the job runs on and waits for; return the pods of others."""
    objects = queries.objects
    single = {"others": ("pods", "--all-namespaces", LIVE), "Node": ("nodes",), "Event": ("events",)}
    if seen.namespace != CLUSTER_NAMESPACE:
        single[NODE_EVENTS] = ("events", f"--namespace={CLUSTER_NAMESPACE}")
    queries.ask(single, (NAMESPACED, GLOBAL))
    about_nodes = [
        event
        for event in objects.pop(NODE_EVENTS, [])
        if event.get("involvedObject", {}).get("kind") in ("Node", "NodeClaim")
    ]
    objects["Event"] = [*objects.get("Event", []), *about_nodes]
    pods = [JobPod(pod, seen.workload) for pod in objects["Pod"]]
    queries.ask(_further(seen.workload, seen.owner, pods, objects))
    _keep_bound(objects, pods)
    _references(here, seen.workload, pods, queries)
    own = {pod.uid for pod in pods}
    return [pod for pod in objects.pop("others", []) if pod["metadata"]["uid"] not in own]


def runtime(job: Workload) -> tuple[str, str] | None:
    """Return kind and name of the runtime that a TrainJob names: it says what the job's pods are."""
    reference = job.spec.get("runtimeRef") if job.kind == "TrainJob" else None
    if not isinstance(reference, dict):
        return None
    kind = str(reference.get("kind") or "ClusterTrainingRuntime")
    return (kind, str(reference.get("name"))) if kind in RUNTIMES else None


def read_runtime(kubectl: Kubectl, wanted: tuple[str, str], queries: Queries) -> None:
    """Read the runtime of a kind and name, if it is there."""
    kind, name = wanted
    queries.attempt(kind, lambda: kubectl.items(RUNTIMES[kind], "--ignore-not-found", names=[name]))


def _further(
    job: Workload, owner: Object | None, pods: list[JobPod], objects: dict[str, list[Object]]
) -> dict[str, tuple[str, ...]]:
    """Return the queries for kinds that only this job needs: most clusters do not have them."""
    specs = [*template_specs(job), *(pod.spec for pod in pods)]
    schedulers = {str(spec.get("schedulerName")) for spec in (*specs, job.spec)}  # a Volcano Job has its own
    if (job.spec.get("runPolicy") or {}).get("schedulingPolicy") and not schedulers & set(GANGS):
        schedulers.add("volcano")
    wanted: dict[str, str] = {}
    for name, kinds in GANGS.items():
        wanted |= kinds if name in schedulers else {}
    labels = [(one or {"metadata": {}})["metadata"].get("labels") or {} for one in (job.item, owner)]
    labels += [pod.labels for pod in pods]
    wanted |= KUEUE if any(QUEUE_LABEL in one for one in labels) else {}
    wanted |= CLAIMS if any(spec.get("resourceClaims") for spec in specs) else {}
    waits = any(pod.node is None for pod in pods)
    if waits and any("nodeclaim/" in str(event.get("message")) for event in objects["Event"]):
        wanted["NodeClaim"] = "nodeclaims.karpenter.sh"
    everywhere = ("--all-namespaces",)
    found = {kind: (resource, *(everywhere if kind == "ResourceClaim" else ())) for kind, resource in wanted.items()}
    return found | _parts(job)


def _parts(job: Workload) -> dict[str, tuple[str, ...]]:
    """Return the query for the Jobs of a JobSet, which have the events about refused pods."""
    of_set = job.kind in ("JobSet", "TrainJob")
    return {"Job": ("jobs.batch", command_line.selector(JOBSET_LABEL, job.name))} if of_set else {}


def _keep_bound(objects: dict[str, list[Object]], pods: list[JobPod]) -> None:
    """Drop the volumes of claims that the job does not mount."""
    names = {name for pod in pods for name in claim_names(pod)}
    claims = [claim for claim in objects.get("PersistentVolumeClaim", []) if name_of(claim) in names]
    bound = {claim["spec"].get("volumeName") for claim in claims}
    if "PersistentVolume" in objects:
        volumes = objects["PersistentVolume"]
        objects["PersistentVolume"] = [volume for volume in volumes if name_of(volume) in bound]


def _references(kubectl: Kubectl, job: Workload, pods: list[JobPod], queries: Queries) -> None:
    """Look up the ConfigMaps and Secrets that the pods name: ConfigMaps with their keys, Secrets by name."""
    specs = [pod.spec for pod in pods] or template_specs(job)
    names: dict[str, set[str]] = {"ConfigMap": set(), "Secret": set()}
    for reference in (reference for spec in specs for reference in needed(spec)):
        names[reference.kind].add(reference.name)

    def config_maps() -> list[Object]:
        wanted = sorted(names["ConfigMap"])
        found = kubectl.items("configmap", "--ignore-not-found", names=wanted) if wanted else []
        return [
            {
                "metadata": {"name": name_of(item)},
                "keys": sorted([*(item.get("data") or {}), *(item.get("binaryData") or {})]),
            }
            for item in found
        ]

    def secrets() -> list[Object]:
        words = ("get", "secret", "--ignore-not-found", "--output=name")
        found = (name for name in sorted(names["Secret"]) if kubectl.text(*words, names=[name]).strip())
        return [{"metadata": {"name": name}} for name in found]

    queries.attempt("ConfigMap", config_maps)
    queries.attempt("Secret", secrets)


def _logs(kubectl: Kubectl, pods: list[JobPod], most: int, unseen: dict[str, str]) -> list[Log]:
    """Return the ends of the logs of `most` pods, or of fewer where kubelets answer slowly."""
    order = sorted(pods, key=lambda pod: (not (pod.restarts or pod.end or pod.broken), pod.index))
    wanted: list[tuple[JobPod, str]] = []
    for pod in order[:most]:
        wanted += [(pod, OTHER)] if pod.broken else []
        wanted += [(pod, CURRENT)] if pod.running or pod.end else []
        wanted += [(pod, PREVIOUS)] if pod.restarts else []
    found: list[Log] = []
    late: list[str] = []
    last_start = time.monotonic() + BEGUN_SECONDS

    deep = {pod.name for pod in order[:FAILED_PODS] if pod.restarts or pod.broken or (pod.end and pod.end.code)}

    def read(one: tuple[JobPod, str]) -> None:
        pod, which = one
        container = pod.broken[0] if which is OTHER and pod.broken else pod.container_name
        name, previous = pod.previous if which is PREVIOUS else (pod.name, ())
        words = ("logs", f"--container={container}", "--timestamps", *previous)
        if time.monotonic() > last_start:
            late.append(pod.short)
            return
        try:
            text = _end_of_log(kubectl, words, name, FAILED_TAIL if pod.name in deep else TAIL)
        except UserError as problem:
            unseen[f"log of {pod.short}"] = problem.message
        else:
            found.append(Log(pod.name, which, text))

    each(read, wanted)
    if late:
        unseen[f"logs of {late[0]} to {late[-1]}"] = f"not read: those before took more than {BEGUN_SECONDS:.0f} s"
    return sorted(found, key=lambda log: (log.pod, log.which))


def _end_of_log(kubectl: Kubectl, words: tuple[str, ...], name: str, lines: int) -> str:
    """Return the last lines of a pod's log. The kubelet cuts their end where they have too many bytes."""
    limit = f"--limit-bytes={LARGEST_LOG}"
    text = kubectl.text(*words, f"--tail={lines}", limit, names=[name], seconds=LOG_SECONDS)
    if len(text.encode()) < LARGEST_LOG:
        return text
    return kubectl.text(*words, f"--tail={LEAST_TAIL}", limit, names=[name], seconds=LOG_SECONDS)
