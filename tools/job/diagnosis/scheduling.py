"""Causes of a pod that has no node."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from tools.core.output import count
from tools.core.timestamps import duration
from tools.job.diagnosis import autoscaling, queues, scheduler_message, signs
from tools.job.diagnosis.admission import PATIENCE, is_over
from tools.job.diagnosis.autoscaling import COMING, promised
from tools.job.diagnosis.cause import CAUSES, Cause, Layer, short
from tools.job.diagnosis.node_fit import ORDER, Fit, Nodes, Obstacle, VolumeTopology
from tools.job.diagnosis.resources import existing, formatted, name_of, rank
from tools.job.snapshot.kinds import CLAIMS
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object
from tools.kube.quantity import pod_requests
from tools.workload.workload import QUEUE_LABEL

SHOWN_NODES = 4
GANG_SCHEDULERS = ("volcano", "scheduler-plugins-scheduler", "kai-scheduler", "yunikorn")
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PROVISIONING = ("Provisioning", "ExternalProvisioning")


def waiting(snapshot: Snapshot) -> list[JobPod]:
    """Return the pods that wait for a node."""
    if is_over(snapshot):
        return []
    return [pod for pod in snapshot.pods if pod.phase == "Pending" and pod.node is None and not pod.deleted]


def claims(snapshot: Snapshot) -> Iterator[Cause]:
    """A claim that the pod mounts does not exist, or has no volume."""
    for pod in waiting(snapshot)[:1]:
        for name in claim_names(pod):
            if not snapshot.saw("PersistentVolumeClaim"):
                return
            claim = snapshot.find("PersistentVolumeClaim", name)
            phase = ((claim or {}).get("status") or {}).get("phase")
            if claim is None:
                summary = f"the claim {name} does not exist in namespace {snapshot.namespace}"
                yield Cause("claim-missing", Layer.BLOCKED, summary, [f"{pod.short} mounts it"], pod.name)
            elif phase == "Lost":
                summary, evidence = f"the volume of claim {name} is gone", [f"claim {name}: phase Lost"]
                yield Cause("claim-pending", Layer.BLOCKED, summary, evidence, pod.name)
            elif phase != "Bound":
                yield from _unbound(snapshot, pod, claim)


def _unbound(snapshot: Snapshot, pod: JobPod, claim: Object) -> Iterator[Cause]:
    """A claim without a volume is a cause, unless its class waits for the pod to have a node."""
    name = claim["metadata"]["name"]
    events = [event for event in snapshot.events("PersistentVolumeClaim", name) if event.get("type") == "Warning"]
    said = [short(f"event: {event.get('message', '')}") for event in events[-1:]]
    classes = {item["metadata"]["name"]: item for item in snapshot.of("StorageClass")}
    wanted = _class_of(snapshot, claim)
    later = (classes.get(wanted or "") or {}).get("volumeBindingMode") == "WaitForFirstConsumer"
    if snapshot.saw("StorageClass") and wanted is None and not claim["spec"].get("volumeName"):
        fact = f"claim {name} names no storage class, and the cluster has no default class"
    elif snapshot.saw("StorageClass") and wanted and wanted not in classes:
        fact = f"claim {name} asks for storage class {wanted}, which does not exist"
        fact += f"; existing: {', '.join(sorted(classes)) or 'none'}"
    elif not said and (later or provisioning(snapshot, name)):
        return
    else:
        fact = f"claim {name} of class {wanted or 'none'} is Pending"
    summary = f"the claim {name} has no volume"
    at = event_time(events[-1]) if events else None
    yield Cause("claim-pending", Layer.BLOCKED, summary, [fact, *said], pod.name, at=at)


def _class_of(snapshot: Snapshot, claim: Object) -> str | None:
    """Return a claim's storage class, the cluster's default where it names none."""
    default = (
        str(item["metadata"]["name"])
        for item in snapshot.of("StorageClass")
        if (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    )
    wanted: str | None = claim["spec"].get("storageClassName")
    return next(default, None) if wanted is None else wanted


def provisioning(snapshot: Snapshot, claim: str) -> bool:
    """Return whether a provisioner is creating the volume of a claim."""
    events = snapshot.events("PersistentVolumeClaim", claim)[-1:]
    ages = [snapshot.age(event_time(event)) for event in events if event.get("reason") in PROVISIONING]
    return any(age is not None and age < COMING for age in ages)


def gated(snapshot: Snapshot) -> Iterator[Cause]:
    """A scheduling gate holds the pods back: a queue has not admitted them."""
    for pod in waiting(snapshot):
        gates = [str(gate["name"]) for gate in pod.spec.get("schedulingGates") or []]
        if gates:
            evidence, advice = [f"{pod.short}: schedulingGates {', '.join(gates)}"], None
            labels = {**(snapshot.job["metadata"].get("labels") or {}), **pod.labels}
            if queue := labels.get(QUEUE_LABEL):
                said, advice = queues.kueue(snapshot, str(queue))
                evidence += said
            summary = "the pods are gated and wait for admission"
            yield Cause("queue", Layer.BLOCKED, summary, evidence, pod.name, advice=advice)
            return


def scheduler(snapshot: Snapshot) -> Iterator[Cause]:
    """No scheduler has looked at the pod."""
    for pod in waiting(snapshot):
        age = snapshot.age(pod.created) or 0.0
        if pod.condition("PodScheduled") is None and age > PATIENCE and not pod.spec.get("schedulingGates"):
            name = pod.spec.get("schedulerName", "default-scheduler")
            evidence = [f"{pod.short}: spec.schedulerName {name}, no PodScheduled condition in {duration(age)}"]
            summary = f"the scheduler {name} has not looked at the pods"
            yield Cause("scheduler-absent", Layer.BLOCKED, summary, evidence, pod.name)
            return


def unschedulable(snapshot: Snapshot) -> Iterator[Cause]:
    """No node takes the pod: computed where `node_fit` has the rule and saw the nodes, else as the scheduler says."""
    pods = [pod for pod in waiting(snapshot) if not pod.spec.get("schedulingGates")]
    missing = list(_missing_device_objects(snapshot, pods))
    yield from missing
    if not pods:
        return
    if not _nodes_seen(snapshot):
        yield from [] if missing else _refused(snapshot, pods, computed=False)
        return
    nodes = all_nodes(snapshot)
    if not nodes.nodes:
        yield from _no_nodes(snapshot, pods[0])
        return
    for pod in _different(pods):
        fit = _fit(snapshot, nodes, pod)
        if not fit.open and promised(snapshot, pod) is None:
            yield _cause(snapshot, nodes, pod, fit, len(pods))
            return
    gang = list(_gang(snapshot, pods)) if len(pods) > 1 and is_gang(snapshot, pods[0]) else []
    yield from gang or (not missing and _refused(snapshot, pods)) or queues.gang_waits(snapshot)


def _nodes_seen(snapshot: Snapshot) -> bool:
    return snapshot.saw("Node") and "others" not in snapshot.unseen


def _missing_device_objects(snapshot: Snapshot, pods: list[JobPod]) -> Iterator[Cause]:
    """A ResourceClaim that the pod names, or its template, does not exist.

    kube-scheduler does not try such a pod (its plugin's PreEnqueue), so the pod has no condition to quote.
    """
    for pod in pods[:1]:
        for entry in pod.spec.get("resourceClaims") or []:
            kind, name = "ResourceClaim", entry.get("resourceClaimName")
            if name is None:
                kind, name = "ResourceClaimTemplate", entry.get("resourceClaimTemplateName")
            if name and snapshot.saw(kind) and snapshot.find(kind, name) is None:
                summary = f"the {kind} {name} does not exist in namespace {snapshot.namespace}"
                evidence = [f"{pod.short} names it", f"existing: {existing(snapshot, kind)}"]
                advice = f"create it, or name an existing one: kubectl get {CLAIMS[kind]}"
                yield Cause(
                    "unschedulable/resource-claim", Layer.BLOCKED, summary, evidence, pod.name,
                    at=pod.created, advice=advice,
                )  # fmt: skip
                return


def _refused(snapshot: Snapshot, pods: list[JobPod], *, computed: bool = True) -> list[Cause]:
    """Return what the scheduler says of the first pod that has room by our arithmetic, or that had no arithmetic."""
    for pod in pods:
        cause = scheduler_message.refusal(snapshot, pod, _number_waiting(snapshot, len(pods)), computed=computed)
        if cause and promised(snapshot, pod) is None:
            return [cause]
    return []


def _different(pods: list[JobPod]) -> Iterator[JobPod]:
    """Yield the pods that differ in what the scheduler looks at: the workers of a job are mostly alike."""
    seen = set()
    for pod in pods:
        spec = {key: value for key, value in pod.spec.items() if key not in ("containers", "hostname")}
        requested = [container.get("resources") for container in pod.spec.get("containers") or []]
        key = json.dumps([pod.role, spec, requested], sort_keys=True, default=str)
        if key not in seen:
            seen.add(key)
            yield pod


def _no_nodes(snapshot: Snapshot, pod: JobPod) -> Iterator[Cause]:
    """The cluster has no node, and no node is being started."""
    if promised(snapshot, pod) is None:
        said = autoscaling.refusals(snapshot, pod)
        advice = autoscaling.advice(said) or "add nodes"
        kind, summary = "unschedulable/no-nodes", "the cluster has no node"
        yield Cause(kind, Layer.BLOCKED, summary, ["0 nodes", *said], pod.name, advice=advice)


def _fit(snapshot: Snapshot, nodes: Nodes, pod: JobPod) -> Fit:
    return nodes.fit(pod.item, _volumes(snapshot, pod))


def room(snapshot: Snapshot, pod: JobPod) -> str | None:
    """Return a node with room for a waiting pod, and the scheduler's words; None without such a node."""
    fit = _fit(snapshot, all_nodes(snapshot), pod) if _nodes_seen(snapshot) else Fit({})
    if not fit.open:
        return None
    said = scheduler_message.message(snapshot, pod)
    return f"{fit.open[0]} has room for it" + (short(f"; the scheduler says: {said}") if said else "")


def is_gang(snapshot: Snapshot, pod: JobPod) -> bool:
    """Return whether the scheduler places the pods all together or not at all, as those of PodGroups do."""
    marks = [*pod.labels, *(pod.item["metadata"].get("annotations") or {})]
    marked = any("pod-group" in key or "group-name" in key for key in marks)
    return marked or bool(snapshot.of("PodGroup")) or pod.spec.get("schedulerName") in GANG_SCHEDULERS


def _gang(snapshot: Snapshot, pods: list[JobPod]) -> Iterator[Cause]:
    """Each pod of a gang fits alone: the first that does not fit once those before it are placed."""
    nodes = all_nodes(snapshot)
    for number, pod in enumerate(pods):
        fit = _fit(snapshot, nodes, pod)
        if not fit.open:
            cause = _cause(snapshot, nodes, pod, fit, len(pods))
            together = f"only {number} of {len(pods)} pods of the gang fit at the same time"
            yield replace(cause, evidence=[together, *cause.evidence])
            return
        nodes.place(pod.item, fit.open[0])


def all_nodes(snapshot: Snapshot) -> Nodes:
    """Return the nodes with everything that runs on them."""
    return Nodes(snapshot.of("Node"), [*snapshot.others, *(pod.item for pod in snapshot.pods)])


def _volumes(snapshot: Snapshot, pod: JobPod) -> list[VolumeTopology]:
    """Return where a pod's volumes are, or where their storage class can create them."""
    volumes = []
    for claim in filter(None, (snapshot.find("PersistentVolumeClaim", name) for name in claim_names(pod))):
        volume = snapshot.find("PersistentVolume", claim["spec"].get("volumeName") or "")
        required = ((volume or {}).get("spec") or {}).get("nodeAffinity") or {}
        terms = (required.get("required") or {}).get("nodeSelectorTerms")
        if volume and terms:
            volumes.append(VolumeTopology(f"volume {volume['metadata']['name']}", terms))
        name = _class_of(snapshot, claim)
        allowed = (snapshot.find("StorageClass", name or "") or {}).get("allowedTopologies")
        if allowed and not claim["spec"].get("volumeName"):
            terms = [
                {
                    "matchExpressions": [
                        {"key": label["key"], "operator": "In", "values": label["values"]}
                        for label in topology.get("matchLabelExpressions") or []
                    ]
                }
                for topology in allowed
            ]
            volumes.append(VolumeTopology(f"storage class {name}", terms))
    return volumes


def _number_waiting(snapshot: Snapshot, number: int) -> str:
    return f"{number} of {count(snapshot.replicas, 'pod')} {'has' if number == 1 else 'have'} no node"


def _cause(snapshot: Snapshot, nodes: Nodes, pod: JobPod, fit: Fit, number: int) -> Cause:
    nearest = fit.nearest()
    kind = min((one.kind for found in nearest.values() for one in found), key=ORDER.index)
    if kind == "resource":
        kind = _scarcest(nearest)
    facts = [
        f"{node}: {_fact(found, kind)}{_holders(nodes, node, kind)}"
        for node, found in sorted(nearest.items())[:SHOWN_NODES]
    ]
    rest = len(nearest) - SHOWN_NODES
    facts += [f"and {rest} more nodes like these"] if rest > 0 else []
    others = len(fit.obstacles) - len(nearest)
    facts += [f"{count(others, 'other node')} excluded: {_others(fit, nearest)}"] if others else []
    refusals = autoscaling.refusals(snapshot, pod)
    known = CAUSES.get(f"unschedulable/{kind}")
    summary, advice = (known["says"], known["fix"]) if known else _shortage(kind, nearest, pod)
    if kind == "taint":
        said = [_fact(found, kind) for found in nearest.values()]
        passing = (sign.fix for sign in signs.tables()["taints"] if all(map(sign.match.search, said)))
        advice = next(passing, advice)
    return Cause(
        f"unschedulable/{kind}", Layer.BLOCKED, f"{_number_waiting(snapshot, number)}: {summary}",
        [*facts, *refusals], pod.name, at=pod.created, advice=autoscaling.advice(refusals) or advice,
    )  # fmt: skip


def _scarcest(nearest: dict[str, list[Obstacle]]) -> str:
    """Return the resource that the nodes with the fewest obstacles lack: devices before the others."""
    least = min(len(found) for found in nearest.values())
    missing = Counter(
        one.resource for found in nearest.values() if len(found) == least for one in found if one.resource
    )
    return min(missing, key=lambda name: (rank(name)[0], -missing[name], name))


def _fact(found: list[Obstacle], kind: str) -> str:
    chosen = [one for one in found if kind in (one.kind, one.resource)]
    return (chosen or found)[0].fact


def _holders(nodes: Nodes, node: str, resource: str) -> str:
    """Return the two pods that hold the most of a node's resource."""
    held = {
        f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}": pod_requests(pod["spec"]).get(
            resource, Decimal(0)
        )
        for pod in nodes.on(node)
    }
    largest = sorted((one for one in held.items() if one[1] > 0), key=lambda one: -one[1])[:2]
    if not largest:
        return ""
    return f" (held by {', '.join(f'{name}: {formatted(resource, value)}' for name, value in largest)})"


def _others(fit: Fit, nearest: dict[str, list[Obstacle]]) -> str:
    kinds = Counter(found[0].kind for node, found in fit.obstacles.items() if found and node not in nearest)
    return ", ".join(f"{number} by {kind}" for kind, number in kinds.most_common())


def _shortage(resource: str, nearest: dict[str, list[Obstacle]], pod: JobPod) -> tuple[str, str | None]:
    """Return summary and remedy for a resource that is missing."""
    amount = f"{formatted(resource, pod_requests(pod.spec)[resource])} {name_of(resource)}"
    if all(one.never for found in nearest.values() for one in found if one.resource == resource):
        plugin = "check that the device plugin runs on the nodes; else " if "/" in resource else ""
        return (
            f"no node is large enough for {amount}",
            f"{plugin}request what a node of that type has: yard preflight knows it",
        )
    return f"not enough {name_of(resource)} are free on any node ({amount} requested)", None
