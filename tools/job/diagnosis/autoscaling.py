"""What an autoscaler says of a pod without a node: a node is being started, or will not come.

Cluster Autoscaler and Karpenter write events about the pod. Why a machine is not available, Karpenter writes
only about its NodeClaim (kubernetes-sigs/karpenter #2159), which it then deletes and replaces by another.
"""

import re

from tools.core.timestamps import duration
from tools.job.diagnosis import signs
from tools.job.diagnosis.cause import short
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object

COMING = 900.0  # seconds that a node may take to start, and a volume to be created
PROMISES, REFUSAL = ("TriggeredScaleUp", "Nominated"), "NotTriggerScaleUp"
BROKEN = 3  # NodeClaims of a pod, one after the other, without a node
GONE = 60.0  # seconds after which a NodeClaim that does not exist has failed
NODE_CLAIM = re.compile(r"nodeclaim/([\w.-]+)")


def promised(snapshot: Snapshot, pod: JobPod) -> str | None:
    """Return why the pod gets a node soon: a machine is starting, or other pods are being preempted."""
    name = pod.status.get("nominatedNodeName")
    if name and (snapshot.age(pod.created) or 0.0) < COMING:
        return f"{pod.short} will run on {name}: pods of lower priority are being ended"
    said = _said(snapshot, pod)
    age = snapshot.age(event_time(said[-1])) if said else None
    if age is None or age >= COMING or said[-1]["reason"] not in PROMISES:
        return None
    given = _given(said)
    if len(given) >= BROKEN or (given and _failed(snapshot, given[-1], age)):
        return None
    return short(f"{pod.short}: a node has been starting for {duration(age)}: {said[-1].get('message', '')}")


def refusals(snapshot: Snapshot, pod: JobPod) -> list[str]:
    """Return why no machine is started, in the autoscaler's words."""
    said = _said(snapshot, pod)
    found = [one for one in said if one["reason"] not in PROMISES][-1:]
    lines = [short(f"autoscaler: {one.get('message', '')}") for one in found]
    given = _given(said)
    if len(given) >= BROKEN:
        lines.append(f"Karpenter has started {len(given)} machines for {pod.short}, and none became a node")
    failing = {name: words for name in _claims(snapshot) if (words := _failure(snapshot, name))}
    chosen = [name for name in failing if name in given] or list(failing)
    return [*lines, *(short(f"NodeClaim {name}: {failing[name]}") for name in chosen[-1:])]


def advice(lines: list[str]) -> str | None:
    """Return the remedy for the autoscaler's message, None if it names no known reason."""
    sign = signs.first("autoscaler", " ".join(lines))
    return sign.fix if sign else None


def _said(snapshot: Snapshot, pod: JobPod) -> list[Object]:
    """Return an autoscaler's events about the pod, the newest last."""
    return [
        event
        for event in snapshot.events("Pod", pod.name)
        if event.get("reason") in (*PROMISES, REFUSAL)
        or (event.get("reason") == "FailedScheduling" and from_karpenter(event))
    ]


def from_karpenter(event: Object) -> bool:
    reporter = event.get("reportingComponent") or (event.get("source") or {}).get("component")
    return "karpenter" in str(reporter)


def _given(said: list[Object]) -> list[str]:
    """Return the NodeClaims that were created for the pod, the newest last."""
    found = (NODE_CLAIM.search(str(event.get("message", ""))) for event in said)
    return list(dict.fromkeys(match[1] for match in found if match))


def _claims(snapshot: Snapshot) -> list[str]:
    """Return the NodeClaims that exist or have events, the newest last."""
    told = [one.get("involvedObject") or {} for one in snapshot.of("Event")]
    names = [str(one["name"]) for one in told if one.get("kind") == "NodeClaim"]
    return list(dict.fromkeys([*names, *(one["metadata"]["name"] for one in snapshot.of("NodeClaim"))]))


def _failed(snapshot: Snapshot, name: str, age: float) -> bool:
    """Return whether a NodeClaim that was created `age` seconds ago has failed."""
    gone = snapshot.saw("NodeClaim") and snapshot.find("NodeClaim", name) is None
    return _failure(snapshot, name) is not None or (gone and age > GONE)


def _failure(snapshot: Snapshot, name: str) -> str | None:
    """Return why a NodeClaim gets no machine, None if no failure is known."""
    warnings = [one for one in snapshot.events("NodeClaim", name) if one.get("type") == "Warning"]
    if warnings:
        return f"{warnings[-1].get('reason')}: {warnings[-1].get('message', '')}"
    claim = snapshot.find("NodeClaim", name) or {}
    for one in (claim.get("status") or {}).get("conditions") or []:
        waits = one.get("reason") in (None, "", "AwaitingReconciliation", "Launched")
        if one["type"] == "Launched" and one.get("status") != "True" and not waits:
            return f"{one['reason']}: {one.get('message', '')}"
    return None
