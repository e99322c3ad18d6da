"""Causes of a pod that has no node."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from tools.core.output import count
from tools.core.timestamps import duration
from tools.job.diagnosis import autoscaling, device_claims, queues
from tools.job.diagnosis.admission import PATIENCE, is_over
from tools.job.diagnosis.autoscaling import COMING, promised
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.scheduler_fit import (
    ORDER,
    Fit,
    Nodes,
    Obstacle,
    Place,
    name_of,
    rank,
    shown,
)
from tools.job.snapshot.kinds import QUEUE_LABEL
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object
from tools.kube.quantity import pod_requests

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
            if claim is None:
                summary = f"the claim {name} does not exist in namespace {snapshot.namespace}"
                yield Cause("claim-missing", Layer.BLOCKED, summary, [f"{pod.short} mounts it"], pod.name)
            elif (claim.get("status") or {}).get("phase") == "Lost":
                evidence = [f"claim {name}: phase Lost"]
                yield Cause(
                    "claim-pending", Layer.BLOCKED, f"the volume of claim {name} is gone", evidence, pod.name
                )
            elif (claim.get("status") or {}).get("phase") != "Bound":
                yield from _unbound(snapshot, pod, claim)


def _unbound(snapshot: Snapshot, pod: JobPod, claim: Object) -> Iterator[Cause]:
    """A claim without a volume is a cause, unless its class waits for the pod to have a node."""
    name = claim["metadata"]["name"]
    events = [
        event for event in snapshot.events("PersistentVolumeClaim", name) if event.get("type") == "Warning"
    ]
    said = [short(f"event: {event.get('message', '')}") for event in events[-1:]]
    classes = {item["metadata"]["name"]: item for item in snapshot.of("StorageClass")}
    wanted = _class_of(snapshot, claim)
    if snapshot.saw("StorageClass") and wanted is None and not claim["spec"].get("volumeName"):
        fact = f"claim {name} names no storage class, and the cluster has no default one"
    elif snapshot.saw("StorageClass") and wanted and wanted not in classes:
        has = ", ".join(sorted(classes)) or "none"
        fact = f"claim {name} asks for storage class {wanted}, which does not exist; there are: {has}"
    elif not said and (_binds_later(classes.get(wanted or "")) or being_made(snapshot, name)):
        return
    else:
        fact = f"claim {name} of class {wanted or 'none'} is Pending"
    summary = f"the claim {name} has no volume"
    at = event_time(events[-1]) if events else None
    yield Cause("claim-pending", Layer.BLOCKED, summary, [fact, *said], pod.name, at=at)


def _class_of(snapshot: Snapshot, claim: Object) -> str | None:
    """Return the name of a claim's storage class, the cluster's default one where it names none."""
    default = (
        str(item["metadata"]["name"])
        for item in snapshot.of("StorageClass")
        if (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    )
    wanted: str | None = claim["spec"].get("storageClassName")
    return next(default, None) if wanted is None else wanted


def _binds_later(kind: Object | None) -> bool:
    return (kind or {}).get("volumeBindingMode") == "WaitForFirstConsumer"


def being_made(snapshot: Snapshot, claim: str) -> bool:
    """Say whether a provisioner is at work on the volume of a claim."""
    events = snapshot.events("PersistentVolumeClaim", claim)[-1:]
    ages = [snapshot.age(event_time(one)) for one in events if one.get("reason") in PROVISIONING]
    return any(age is not None and age < COMING for age in ages)


def gated(snapshot: Snapshot) -> Iterator[Cause]:
    """A scheduling gate holds the pods back: a queue has not let them in."""
    for pod in waiting(snapshot):
        gates = [str(gate["name"]) for gate in pod.spec.get("schedulingGates") or []]
        if gates:
            evidence, advice = [f"{pod.short}: schedulingGates {', '.join(gates)}"], None
            labels = {**(snapshot.job["metadata"].get("labels") or {}), **pod.labels}
            if queue := labels.get(QUEUE_LABEL):
                said, advice = queues.kueue(snapshot, str(queue))
                evidence += said
            summary = "the pods are gated and wait to be let in"
            yield Cause("queue", Layer.BLOCKED, summary, evidence, pod.name, advice=advice)
            return


def scheduler(snapshot: Snapshot) -> Iterator[Cause]:
    """No scheduler has looked at the pod."""
    for pod in waiting(snapshot):
        age = snapshot.age(pod.created) or 0.0
        if pod.condition("PodScheduled") is None and age > PATIENCE and not pod.spec.get("schedulingGates"):
            name = pod.spec.get("schedulerName", "default-scheduler")
            evidence = [
                f"{pod.short}: spec.schedulerName {name}, no PodScheduled condition in {duration(age)}"
            ]
            summary = f"the scheduler {name} has not looked at the pods"
            yield Cause("scheduler-absent", Layer.BLOCKED, summary, evidence, pod.name)
            return


def unschedulable(snapshot: Snapshot) -> Iterator[Cause]:
    """No node takes the pod, by our own arithmetic over nodes and requests."""
    pods = [pod for pod in waiting(snapshot) if not pod.spec.get("schedulingGates")]
    if not pods or not snapshot.saw("Node") or "others" in snapshot.unseen:
        return
    nodes = all_nodes(snapshot)
    if not nodes.nodes:
        yield from _empty(snapshot, pods[0])
        return
    missing = list(device_claims.missing(snapshot, pods))
    yield from missing
    for pod in _different(pods):
        fit = _fit(snapshot, nodes, pod)
        if not fit.open and promised(snapshot, pod) is None:
            yield _cause(snapshot, nodes, pod, fit, len(pods))
            return
    short_of = list(_gang(snapshot, pods)) if len(pods) > 1 and is_gang(snapshot, pods[0]) else []
    yield from short_of or queues.waits(snapshot)
    old = [pod for pod in pods if (snapshot.age(pod.created) or 0.0) > PATIENCE]
    for pod in () if missing else old:
        claimed = list(device_claims.unallocated(snapshot, pod))
        if claimed and promised(snapshot, pod) is None:
            yield from claimed
            return


def _different(pods: list[JobPod]) -> Iterator[JobPod]:
    """Yield the pods that differ in what decides about a node: the workers of a job are mostly alike."""
    seen = set()
    for pod in pods:
        spec = {key: value for key, value in pod.spec.items() if key not in ("containers", "hostname")}
        asked = [(one.get("resources"), one.get("ports")) for one in pod.spec.get("containers") or []]
        claims = pod.status.get("resourceClaimStatuses")
        key = json.dumps([pod.role, spec, asked, claims], sort_keys=True, default=str)
        if key not in seen:
            seen.add(key)
            yield pod


def _empty(snapshot: Snapshot, pod: JobPod) -> Iterator[Cause]:
    """The cluster has no node, and none is on its way."""
    if promised(snapshot, pod) is None:
        said = autoscaling.refusals(snapshot, pod)
        advice = autoscaling.advice(said) or "add nodes"
        kind, summary = "unschedulable/no-nodes", "the cluster has no node"
        yield Cause(kind, Layer.BLOCKED, summary, ["0 nodes", *said], pod.name, advice=advice)


def _fit(snapshot: Snapshot, nodes: Nodes, pod: JobPod) -> Fit:
    return nodes.fit(pod.item, places(snapshot, pod), _alone(snapshot, pod))


def room(snapshot: Snapshot, pod: JobPod) -> str | None:
    """Return where a pod without a node would fit by what is computed here, None where nowhere does it."""
    if not snapshot.saw("Node") or "others" in snapshot.unseen:
        return None
    fit = _fit(snapshot, all_nodes(snapshot), pod)
    ignored = f"; not computed: {', '.join(fit.ignored)}" if fit.ignored else ""
    return f"it would fit on {fit.open[0]} by its requests and rules{ignored}" if fit.open else None


def is_gang(snapshot: Snapshot, pod: JobPod) -> bool:
    """Say whether the pods are placed all together or not at all: the schedulers of PodGroups do so."""
    group = any("pod-group" in key or "group-name" in key for key in _group_marks(pod))
    return group or bool(snapshot.of("PodGroup")) or pod.spec.get("schedulerName") in GANG_SCHEDULERS


def _group_marks(pod: JobPod) -> list[str]:
    return [*pod.labels, *(pod.item["metadata"].get("annotations") or {})]


def _gang(snapshot: Snapshot, pods: list[JobPod]) -> Iterator[Cause]:
    """Each pod of a gang fits alone: the first that does not when those before it have been placed."""
    nodes = all_nodes(snapshot)
    for number, pod in enumerate(pods):
        fit = _fit(snapshot, nodes, pod)
        if not fit.open:
            cause = _cause(snapshot, nodes, pod, fit, len(pods))
            evidence = [f"only {number} of {len(pods)} pods of the gang would fit together", *cause.evidence]
            yield replace(cause, evidence=evidence)
            return
        nodes.place(pod.item, fit.open[0])


def all_nodes(snapshot: Snapshot) -> Nodes:
    """Return the nodes with everything that runs on them."""
    return Nodes(snapshot.of("Node"), [*snapshot.others, *(pod.item for pod in snapshot.pods)])


def places(snapshot: Snapshot, pod: JobPod) -> list[Place]:
    """Return where a pod's volumes are or could be made, and the devices that it was given already."""
    found = device_claims.places(snapshot, pod)
    for claim in filter(None, (snapshot.find("PersistentVolumeClaim", name) for name in claim_names(pod))):
        volume = snapshot.find("PersistentVolume", claim["spec"].get("volumeName") or "")
        required = ((volume or {}).get("spec") or {}).get("nodeAffinity") or {}
        terms = (required.get("required") or {}).get("nodeSelectorTerms")
        if volume and terms:
            found.append(Place("zone", f"volume {volume['metadata']['name']}", terms))
        name = _class_of(snapshot, claim)
        allowed = (snapshot.find("StorageClass", name or "") or {}).get("allowedTopologies")
        if allowed and not claim["spec"].get("volumeName"):
            terms = [
                {
                    "matchExpressions": [
                        {"key": one["key"], "operator": "In", "values": one["values"]}
                        for one in topology.get("matchLabelExpressions") or []
                    ]
                }
                for topology in allowed
            ]
            found.append(Place("zone", f"storage class {name}", terms))
    return found


def _alone(snapshot: Snapshot, pod: JobPod) -> list[str]:
    """Return the pod's claims that one pod alone may mount."""
    found = (snapshot.find("PersistentVolumeClaim", name) for name in claim_names(pod))
    modes = {one["metadata"]["name"]: one["spec"].get("accessModes") or [] for one in found if one}
    return [name for name, mode in modes.items() if "ReadWriteOncePod" in mode]


def _cause(snapshot: Snapshot, nodes: Nodes, pod: JobPod, fit: Fit, number: int) -> Cause:
    nearest = fit.nearest()
    kind = _kind(nearest)
    if kind == "resource":
        kind = _scarcest(nearest)
    waits = f"{number} of {count(snapshot.replicas, 'pod')} {'has' if number == 1 else 'have'} no node"
    facts = [
        f"{node}: {_fact(found, kind)}{_holders(nodes, node, kind)}"
        for node, found in sorted(nearest.items())[:SHOWN_NODES]
    ]
    rest = len(nearest) - SHOWN_NODES
    facts += [f"and {rest} more nodes alike"] if rest > 0 else []
    others = len(fit.obstacles) - len(nearest)
    facts += [f"{count(others, 'other node')} would not do: {_others(fit, nearest)}"] if others else []
    said = autoscaling.refusals(snapshot, pod)
    facts += said
    summary, advice = _words(kind, nearest, pod)
    advice = autoscaling.advice(said) or advice
    return Cause(
        f"unschedulable/{kind}", Layer.BLOCKED, f"{waits}: {summary}", facts, pod.name,
        at=pod.created, advice=advice,
    )  # fmt: skip


def _kind(nearest: dict[str, list[Obstacle]]) -> str:
    """Return the kind of obstacle that the nearest nodes share."""
    return min((one.kind for found in nearest.values() for one in found), key=ORDER.index)


def _scarcest(nearest: dict[str, list[Obstacle]]) -> str:
    """Return the resource that is missing where the fewest are: devices are named before CPUs and memory."""
    least = min(len(found) for found in nearest.values())
    short_of = Counter(
        one.resource for found in nearest.values() if len(found) == least for one in found if one.resource
    )
    return min(short_of, key=lambda name: (rank(name)[0], -short_of[name], name))


def _fact(found: list[Obstacle], kind: str) -> str:
    chosen = [one for one in found if kind in (one.kind, one.resource)]
    return (chosen or found)[0].fact


def _holders(nodes: Nodes, node: str, resource: str) -> str:
    """Return who holds a node's resource, the largest two."""
    held = {
        f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}": pod_requests(pod["spec"]).get(
            resource, Decimal(0)
        )
        for pod in nodes.on(node)
    }
    largest = sorted((one for one in held.items() if one[1] > 0), key=lambda one: -one[1])[:2]
    if not largest:
        return ""
    return f" (held by {', '.join(f'{name}: {shown(resource, value)}' for name, value in largest)})"


def _others(fit: Fit, nearest: dict[str, list[Obstacle]]) -> str:
    kinds = Counter(found[0].kind for node, found in fit.obstacles.items() if found and node not in nearest)
    return ", ".join(f"{number} by {kind}" for kind, number in kinds.most_common())


def _words(kind: str, nearest: dict[str, list[Obstacle]], pod: JobPod) -> tuple[str, str | None]:
    """Return the summary of one kind of obstacle, and the advice where it differs from the usual one."""
    total = count(len(nearest), "node")
    plain = {
        "selector": (
            "no node has the labels that the pod selects",
            "correct nodeSelector, or label the nodes",
        ),
        "affinity": (
            "no node is of the kind that the pod's affinity asks for",
            "add nodes of that instance type, or choose another hardware",
        ),
        "zone": (
            "the pod's volume is in another zone than the nodes",
            "have nodes in the volume's zone, or a volume that all zones reach",
        ),
        "not ready": (
            f"{total} that would do: not ready",
            "kubectl describe node says what the kubelet lacks",
        ),
        "cordoned": (f"{total} that would do: cordoned", "kubectl uncordon NODE, when it may be used again"),
        "taint": (
            f"{total} that would do: tainted, and the pod does not tolerate it",
            "add the toleration, if these nodes are meant for this job",
        ),
        "pods": (f"{total} that would do: full of pods", "raise maxPods (prefix delegation), or add nodes"),
        "apart": (
            "the pod may not be beside those that are there",
            "add nodes, or drop the anti-affinity, here or there",
        ),
        "together": (
            "no node that would do is where the pods are that it wants to be with",
            "start those pods first, or drop the pod affinity",
        ),
        "spread": (
            "the pods would be spread less evenly than the job asks",
            "make room where the fewest are, or raise maxSkew, or take whenUnsatisfiable: ScheduleAnyway",
        ),
        "ports": ("the port of the host that the pod wants is taken", "take hostPort and hostNetwork out"),
        "volume": ("the pod's volume is another pod's alone", "a claim of ReadWriteMany, or of its own"),
        "device-place": (
            "the devices of the pod's claim are on a node that it cannot be on",
            "delete the ResourceClaim: it is allocated anew",
        ),
        "name": ("the node that the pod names does not exist", "take spec.nodeName out"),
    }
    if kind in plain:
        return plain[kind]
    wanted = pod_requests(pod.spec)[kind]
    amounts = f"{shown(kind, wanted)} {name_of(kind)}"
    never = all(one.never for found in nearest.values() for one in found if one.resource == kind)
    if never:
        where = "device plugin on the nodes? else " if "/" in kind else ""
        return (
            f"no node is large enough for {amounts}",
            f"{where}ask for what a node of that type can give: yard preflight knows it",
        )
    return f"not enough {name_of(kind)} are free on any node ({amounts} wanted)", None
