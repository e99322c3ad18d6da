"""Takes a snapshot of a job from a live cluster, and looks into its run directory through one of its pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tools.core.errors import UserError
from tools.job.snapshot import remote_probe
from tools.job.snapshot.kinds import CLAIMS, GANGS, GLOBAL, KUEUE, NAMESPACED, QUEUE_LABEL
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import CURRENT, PREVIOUS, Log, Snapshot, own_pods
from tools.kube.kubectl import SECONDS, Kubectl
from tools.kube.manifests import Object
from tools.simulator.operator_admission import DEFAULT_CONTAINER

TAIL = 400  # lines of each log
LOGS = 32  # pods whose logs are read: of a larger job those that have failed, and the first
AT_ONCE = 6
RUN_VARIABLE = "TRAINYARD_RUN"
LIVE = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
NODE_EVENTS = "events of nodes"
CLUSTER_NAMESPACE = "default"  # where events about objects without a namespace are kept


def collect(kubectl: Kubectl, name: str, *, logs: bool = True, run: bool = True) -> Snapshot:
    """Return everything that the cluster tells about the job `name`.

    Raises UserError where the job itself is not seen. Whatever else is not seen stands in `unseen`.
    """
    job = kubectl.json("get", "pytorchjob", name)
    namespace = job["metadata"]["namespace"]
    here = Kubectl(kubectl.context, namespace)
    taker = _Taker(here)
    single = {"all pods": ("pods", "--all-namespaces", LIVE), "own pods": ("pods", _label(name))}
    if namespace != CLUSTER_NAMESPACE:
        single[NODE_EVENTS] = ("events", f"--namespace={CLUSTER_NAMESPACE}")
    taker.take(single, (NAMESPACED, GLOBAL))
    objects, unseen = taker.objects, taker.unseen
    about = ("Node", "NodeClaim")
    told = [one for one in objects.pop(NODE_EVENTS, []) if one.get("involvedObject", {}).get("kind") in about]
    objects["Event"] = [*objects.get("Event", []), *told]
    own = objects.pop("own pods", [])
    everyone = objects.pop("all pods", [])
    _rename(unseen, "own pods", "Pod")
    _rename(unseen, "all pods", "others")
    objects["Pod"] = own_pods(own, name)
    mine = {pod["metadata"]["uid"] for pod in objects["Pod"]}
    pods = [JobPod(pod) for pod in objects["Pod"]]
    taker.take(_further(job, pods, objects), ())
    _keep_bound(objects, pods)
    _references(here, job, pods, objects, unseen)
    found = _logs(here, pods, unseen) if logs else []
    seen = look(here, pods, unseen) if run else None
    return Snapshot(
        taken=datetime.now(UTC),
        namespace=namespace,
        job=job,
        objects=objects,
        others=[pod for pod in everyone if pod["metadata"]["uid"] not in mine],
        logs=found,
        run=seen,
        unseen=unseen,
    )


class _Taker:
    """Asks several questions at once; what is refused is noted with the reason."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self.objects: dict[str, list[Object]] = {}
        self.unseen: dict[str, str] = {}

    def take(self, single: dict[str, tuple[str, ...]], groups: Iterable[dict[str, str]]) -> None:
        """Ask for single kinds by their words, and for groups of kinds with one question each."""
        work = [partial(self._one, kind, *words) for kind, words in single.items()]
        _each(lambda ask: ask(), [*work, *(partial(self._group, group) for group in groups)])

    def _one(self, kind: str, *words: str) -> None:
        try:
            self.objects[kind] = self._kubectl.items(*words)
        except UserError as problem:
            self.unseen[kind] = problem.message

    def _group(self, kinds: dict[str, str]) -> None:
        """Ask once; where something of it is refused, ask for each kind, to know which."""
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


def _label(name: str) -> str:
    return f"--selector=training.kubeflow.org/job-name={name}"


def _rename(unseen: dict[str, str], old: str, new: str) -> None:
    if old in unseen:
        unseen[new] = unseen.pop(old)


def _further(job: Object, pods: list[JobPod], objects: dict[str, list[Object]]) -> dict[str, tuple[str, ...]]:
    """Return what else this job has to do with, by kind: most clusters have none of it."""
    specs = [
        (one.get("template") or {}).get("spec") or {} for one in job["spec"]["pytorchReplicaSpecs"].values()
    ]
    schedulers = {str(spec.get("schedulerName")) for spec in [*specs, *(pod.spec for pod in pods)]}
    if (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") and not schedulers & set(GANGS):
        schedulers.add("volcano")
    wanted: dict[str, str] = {}
    for name, kinds in GANGS.items():
        wanted |= kinds if name in schedulers else {}
    labels = [job["metadata"].get("labels") or {}, *(pod.labels for pod in pods)]
    wanted |= KUEUE if any(QUEUE_LABEL in one for one in labels) else {}
    if any(spec.get("resourceClaims") for spec in [*specs, *(pod.spec for pod in pods)]):
        wanted |= CLAIMS
    waits = any(pod.node is None for pod in pods)
    if waits and any("nodeclaim/" in str(one.get("message")) for one in objects["Event"]):
        wanted["NodeClaim"] = "nodeclaims.karpenter.sh"
    everywhere = ("--all-namespaces",)
    return {
        kind: (resource, *(everywhere if kind == "ResourceClaim" else ()))
        for kind, resource in wanted.items()
    }


def _keep_bound(objects: dict[str, list[Object]], pods: list[JobPod]) -> None:
    """Keep the volumes of this job's claims only."""
    names = {name for pod in pods for name in claim_names(pod)}
    claims = [one for one in objects.get("PersistentVolumeClaim", []) if one["metadata"]["name"] in names]
    bound = {one["spec"].get("volumeName") for one in claims}
    if "PersistentVolume" in objects:
        volumes = objects["PersistentVolume"]
        objects["PersistentVolume"] = [one for one in volumes if one["metadata"]["name"] in bound]


def _references(
    kubectl: Kubectl,
    job: Object,
    pods: list[JobPod],
    objects: dict[str, list[Object]],
    unseen: dict[str, str],
) -> None:
    """Look up the ConfigMaps and secrets that the pods name: of those the keys, of these the name only."""
    specs = [pod.spec for pod in pods] or [
        replica["template"]["spec"] for replica in job["spec"]["pytorchReplicaSpecs"].values()
    ]
    names: dict[str, set[str]] = {"ConfigMap": set(), "Secret": set()}
    for spec in specs:
        for kind, name, _key, _where in needed(spec):
            names[kind].add(name)
    try:
        wanted = ("configmap", *sorted(names["ConfigMap"]), "--ignore-not-found")
        found = kubectl.items(*wanted) if names["ConfigMap"] else []
        objects["ConfigMap"] = [
            {
                "metadata": {"name": one["metadata"]["name"]},
                "keys": sorted([*(one.get("data") or {}), *(one.get("binaryData") or {})]),
            }
            for one in found
        ]
    except UserError as problem:
        unseen["ConfigMap"] = problem.message
    try:
        secrets = []
        for name in sorted(names["Secret"]):
            if kubectl.text("get", "secret", name, "--ignore-not-found", "--output=name").strip():
                secrets.append({"metadata": {"name": name}})
        objects["Secret"] = secrets
    except UserError as problem:
        unseen["Secret"] = problem.message


def _logs(kubectl: Kubectl, pods: list[JobPod], unseen: dict[str, str]) -> list[Log]:
    """Return the ends of the pods' logs; of a large job those of the pods that have failed, and the first."""
    chosen = sorted(pods, key=lambda pod: (not (pod.restarts or pod.end or pod.broken_init), pod.index))[
        :LOGS
    ]
    wanted = [
        (pod, which)
        for pod in chosen
        for which in (CURRENT, PREVIOUS)
        if (which is CURRENT and (pod.running or pod.end or pod.broken_init))
        or (which is PREVIOUS and pod.restarts)
    ]
    found: list[Log] = []

    def read(one: tuple[JobPod, str]) -> None:
        pod, which = one
        container = pod.broken_init[0] if pod.broken_init else container_name(pod)
        words = ["logs", pod.name, f"--container={container}", f"--tail={TAIL}", "--timestamps"]
        done = kubectl.run(*words, *(["--previous"] if which is PREVIOUS else []))
        if done.returncode == 0:
            found.append(Log(pod.name, which, done.stdout))
        else:
            unseen[f"log of {pod.short}"] = (done.stderr.strip().splitlines() or ["no answer"])[-1]

    _each(read, wanted)
    return sorted(found, key=lambda log: (log.pod, log.which))


def container_name(pod: JobPod) -> str:
    """Return the name of the training container."""
    return str(pod.container_spec.get("name", DEFAULT_CONTAINER))


def look(kubectl: Kubectl, pods: list[JobPod], unseen: dict[str, str]) -> Object | None:
    """Return what stands in the run directory, seen from the first pod that runs."""
    if not any(names_run(pod) for pod in pods):
        unseen["run directory"] = f"no pod sets {RUN_VARIABLE}: the trainer is not trainyard's"
        return None
    for pod in pods:
        if pod.running and names_run(pod):
            return _look_from(kubectl, pod, unseen)
    unseen["run directory"] = "no pod of the job runs to look from"
    return None


def names_run(pod: JobPod) -> bool:
    """Say whether a pod's trainer has a run directory."""
    return any(entry.get("name") == RUN_VARIABLE for entry in pod.container_spec.get("env") or [])


def _look_from(kubectl: Kubectl, pod: JobPod, unseen: dict[str, str]) -> Object | None:
    script = Path(remote_probe.__file__).read_text(encoding="utf-8")
    words = ("sh", "-c", f'exec python3 - "${RUN_VARIABLE}"')
    try:
        text = in_pod(kubectl, pod, *words, stdin=script)
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    except UserError as problem:
        unseen["run directory"] = problem.message
    except ValueError:
        unseen["run directory"] = f"{pod.short} answered with something else than JSON"
    return None


def in_pod(
    kubectl: Kubectl, pod: JobPod, *words: str, stdin: str | None = None, seconds: float | None = SECONDS
) -> str:
    """Run a command in a pod's training container and return what it prints; UserError where it fails."""
    options = ["--stdin"] if stdin is not None else []
    container = f"--container={container_name(pod)}"
    return kubectl.text("exec", pod.name, container, *options, "--", *words, stdin=stdin, seconds=seconds)
