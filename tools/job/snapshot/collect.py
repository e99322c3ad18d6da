"""Takes a snapshot of a job from a live cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tools.core import command_line
from tools.core.errors import UserError
from tools.job.snapshot import log_lines, lookup, pod_exec
from tools.job.snapshot.kinds import CLAIMS, GANGS, GLOBAL, KUEUE, NAMESPACED, QUEUE_LABEL
from tools.job.snapshot.pod import JobPod, claim_names, template_specs
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import CURRENT, LARGEST_LOG, PREVIOUS, Log, Snapshot
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object, name_of

TAIL = 400  # lines of each log
LOGS = 32  # pods whose logs are read; in a larger job the failed ones come first
AT_ONCE = 6
LIVE = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
NODE_EVENTS = "events of nodes"
CLUSTER_NAMESPACE = "default"  # holds the events about objects without a namespace


def find(
    kubectl: Kubectl, text: str | None, *, logs: bool = True, run: bool = True
) -> tuple[Kubectl, Snapshot]:
    """Collect the job that `text` names; the returned Kubectl is in the job's namespace."""
    snapshot = collect(kubectl, lookup.job_name(kubectl, text), logs=logs, run=run)
    return Kubectl(kubectl.context, snapshot.namespace), snapshot


def collect(kubectl: Kubectl, name: str, *, logs: bool = True, run: bool = True) -> Snapshot:
    """Return the cluster's objects, logs and run directory that concern the job `name`.

    Raises UserError if the job itself cannot be read. The reason for anything else is in `unseen`.
    """
    job = kubectl.json("get", "pytorchjob", names=[name])
    namespace = job["metadata"]["namespace"]
    here = Kubectl(kubectl.context, namespace)
    queries = _Queries(here)
    objects, unseen = queries.objects, queries.unseen
    selector = command_line.selector("training.kubeflow.org/job-name", name)
    single = {"others": ("pods", "--all-namespaces", LIVE), "Pod": ("pods", selector)}
    if namespace != CLUSTER_NAMESPACE:
        single[NODE_EVENTS] = ("events", f"--namespace={CLUSTER_NAMESPACE}")
    queries.ask(single, (NAMESPACED, GLOBAL))
    about_nodes = [
        event
        for event in objects.pop(NODE_EVENTS, [])
        if event.get("involvedObject", {}).get("kind") in ("Node", "NodeClaim")
    ]
    objects["Event"] = [*objects.get("Event", []), *about_nodes]
    others = objects.pop("others", [])
    pods = [JobPod(pod) for pod in objects.setdefault("Pod", [])]
    own = {pod.uid for pod in pods}
    queries.ask(_further(job, pods, objects), ())
    _keep_bound(objects, pods)
    _references(here, job, pods, queries)
    return Snapshot(
        logs=_logs(here, pods, unseen) if logs else [],
        run=pod_exec.run_directory(here, pods, unseen) if run else None,
        taken=datetime.now(UTC),
        namespace=namespace,
        job=job,
        objects=objects,
        others=[pod for pod in others if pod["metadata"]["uid"] not in own],
        unseen=unseen,
    )


class _Queries:
    """Asks the API server several questions at once; notes the reason of each refusal in `unseen`."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self.objects: dict[str, list[Object]] = {}
        self.unseen: dict[str, str] = {}

    def ask(self, single: dict[str, tuple[str, ...]], groups: Iterable[dict[str, str]]) -> None:
        """Ask for single kinds by their kubectl arguments, and once for each group of kinds."""
        work = [partial(self._one, kind, *words) for kind, words in single.items()]
        _each(lambda ask: ask(), [*work, *(partial(self._group, group) for group in groups)])

    def _one(self, kind: str, *words: str) -> None:
        self.attempt(kind, lambda: self._kubectl.items(*words))

    def attempt(self, kind: str, read: Callable[[], list[Object]]) -> None:
        try:
            self.objects[kind] = read()
        except UserError as problem:
            self.unseen[kind] = problem.message

    def _group(self, kinds: dict[str, str]) -> None:
        """Ask once; if that is refused, ask for each kind, to know which."""
        try:
            found = self._kubectl.items(",".join(kinds.values()))
        except UserError:
            for kind, resource in kinds.items():
                self._one(kind, resource)
            return
        for kind in kinds:
            self.objects[kind] = [item for item in found if item["kind"] == kind]


def _each(work: Callable[[Any], None], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(work, item) for item in items]:
            done.result()


def _further(job: Object, pods: list[JobPod], objects: dict[str, list[Object]]) -> dict[str, tuple[str, ...]]:
    """Return the queries for kinds that only this job needs: most clusters do not have them."""
    specs = [*template_specs(job), *(pod.spec for pod in pods)]
    schedulers = {str(spec.get("schedulerName")) for spec in specs}
    if (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") and not schedulers & set(GANGS):
        schedulers.add("volcano")
    wanted: dict[str, str] = {}
    for name, kinds in GANGS.items():
        wanted |= kinds if name in schedulers else {}
    labels = [job["metadata"].get("labels") or {}, *(pod.labels for pod in pods)]
    wanted |= KUEUE if any(QUEUE_LABEL in one for one in labels) else {}
    wanted |= CLAIMS if any(spec.get("resourceClaims") for spec in specs) else {}
    waits = any(pod.node is None for pod in pods)
    if waits and any("nodeclaim/" in str(event.get("message")) for event in objects["Event"]):
        wanted["NodeClaim"] = "nodeclaims.karpenter.sh"
    everywhere = ("--all-namespaces",)
    return {
        kind: (resource, *(everywhere if kind == "ResourceClaim" else ()))
        for kind, resource in wanted.items()
    }


def _keep_bound(objects: dict[str, list[Object]], pods: list[JobPod]) -> None:
    """Drop the volumes of claims that the job does not mount."""
    names = {name for pod in pods for name in claim_names(pod)}
    claims = [claim for claim in objects.get("PersistentVolumeClaim", []) if name_of(claim) in names]
    bound = {claim["spec"].get("volumeName") for claim in claims}
    if "PersistentVolume" in objects:
        volumes = objects["PersistentVolume"]
        objects["PersistentVolume"] = [volume for volume in volumes if name_of(volume) in bound]


def _references(kubectl: Kubectl, job: Object, pods: list[JobPod], queries: _Queries) -> None:
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


def _logs(kubectl: Kubectl, pods: list[JobPod], unseen: dict[str, str]) -> list[Log]:
    """Return the ends of the pods' logs."""
    order = sorted(pods, key=lambda pod: (not (pod.restarts or pod.end or pod.broken_init), pod.index))
    wanted: list[tuple[JobPod, str]] = []
    for pod in order[:LOGS]:
        wanted += [(pod, CURRENT)] if pod.running or pod.end or pod.broken_init else []
        wanted += [(pod, PREVIOUS)] if pod.restarts else []
    found: list[Log] = []

    def read(one: tuple[JobPod, str]) -> None:
        pod, which = one
        container = pod.broken_init[0] if pod.broken_init else pod.container_name
        words = [
            "logs",
            f"--container={container}",
            f"--tail={TAIL}",
            "--timestamps",
            f"--limit-bytes={LARGEST_LOG}",
        ]
        words += ["--previous"] if which is PREVIOUS else []
        done = kubectl.run(*words, names=[pod.name])
        if done.returncode == 0:
            found.append(Log(pod.name, which, done.stdout))
        else:
            unseen[f"log of {pod.short}"] = log_lines.last_line(done.stderr)

    _each(read, wanted)
    return sorted(found, key=lambda log: (log.pod, log.which))
