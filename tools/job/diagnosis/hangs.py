"""Causes of a job that runs and does not get on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tools.core.timestamps import duration, epoch, moment
from tools.job.diagnosis import failures, node_health
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.metrics import progress
from tools.job.snapshot import log_lines
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube import network_policy
from tools.kube.manifests import Object
from tools.simulator.operator_pods import LABEL
from training.run.heartbeat import Beat


def lost_nodes(snapshot: Snapshot) -> Iterator[Cause]:
    """A pod's node does not answer."""
    if is_over(snapshot):
        return
    for pod in snapshot.pods:
        node = snapshot.find("Node", pod.node) if pod.node else None
        if pod.node and node is None and snapshot.saw("Node"):
            fact = f"{pod.short} is on {pod.node}, which the cluster no longer has"
            yield _lost(snapshot, pod, f"the node of {pod.short} is gone", fact)
            return
        ready = _condition(node or {}, "Ready")
        at = moment((ready or {}).get("lastTransitionTime"))
        if ready and ready.get("status") != "True" and not _heard_since(snapshot, pod, at):
            fact = f"{pod.short} is on {pod.node}: Ready is {ready['status']}: {ready.get('message', '')}"
            yield _lost(snapshot, pod, f"the node of {pod.short} does not answer", fact, at)
            return


def _lost(snapshot: Snapshot, pod: JobPod, summary: str, fact: str, at: datetime | None = None) -> Cause:
    """Return that a pod's node is lost, or what was wrong with the node before."""
    said = node_health.words(snapshot, pod.node, at)
    kind = said[0].kind if said else "node-lost"
    if kind != "node-lost":
        summary = node_health.SUMMARIES[kind].format(node=pod.node)
    evidence = [short(fact), *(one.text for one in said)]
    return Cause(kind, Layer.FAILED, summary, evidence, pod.name, at=at)


def _heard_since(snapshot: Snapshot, pod: JobPod, at: datetime | None) -> bool:
    """Say whether the pod's ranks were heard of since its node's kubelet went silent: the node is there."""
    beats = [beat for beat in progress.of(snapshot).beats if beat.host == pod.name]
    return at is not None and bool(beats) and all(epoch(beat.time) > at for beat in beats)


def bad_nodes(snapshot: Snapshot) -> Iterator[Cause]:
    """A pod of a job that does not get on stands on a node that is not well."""
    stuck = any((snapshot.condition("Failed"), failures.failed_pods(snapshot), list(hang(snapshot))))
    if not stuck:
        return
    for pod in snapshot.pods:
        said = node_health.words(snapshot, pod.node, pod.end.at if pod.end else None)
        kind = said[0].kind if said else "node-lost"
        if kind != "node-lost":
            evidence = [f"{pod.short} is on {pod.node}: {one.text}" for one in said if one.kind == kind]
            summary = node_health.SUMMARIES[kind].format(node=pod.node)
            yield Cause(kind, Layer.BLOCKED, summary, evidence, pod.name)
            return


def _condition(node: Object, kind: str) -> Object | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), None)


def network(snapshot: Snapshot) -> Iterator[Cause]:
    """The ranks cannot meet: no Service for the rendezvous host, or a policy that keeps them apart.

    Said only where they have not met: a job that takes steps needs no explanation.
    """
    if is_over(snapshot) or snapshot.replicas < 2 or progress.of(snapshot).step is not None:
        return
    pods = [pod for pod in snapshot.pods if pod.running or pod.restarts or pod.ended_for_good]
    if not pods:
        return
    first = snapshot.pods[0]
    if snapshot.saw("Service") and snapshot.find("Service", first.name) is None:
        summary = f"there is no Service {first.name}, so the name of the rendezvous host does not resolve"
        evidence = [f"{len(snapshot.pods)} pods, Services: {_names(snapshot, 'Service')}"]
        yield Cause("service-missing", Layer.BLOCKED, summary, evidence, first.name)
        return
    policies = snapshot.of("NetworkPolicy")
    for direction, verb in (("Ingress", "in"), ("Egress", "out to each other")):
        if any(admits(policy, direction, first) for policy in policies):
            continue
        for policy in (one for one in policies if network_policy.applies(one, direction, first.labels)):
            summary = f"the NetworkPolicy {policy['metadata']['name']} keeps the job's pods from each other"
            evidence = [f"it selects {first.name}, and no rule of any policy lets its own job's pods {verb}"]
            yield Cause("network-policy", Layer.BLOCKED, summary, evidence, first.name)
            return


def _names(snapshot: Snapshot, kind: str) -> str:
    return ", ".join(item["metadata"]["name"] for item in snapshot.of(kind)[:4]) or "none"


def admits(policy: Object, direction: str, pod: JobPod) -> bool:
    """Return whether a policy that applies to a pod lets its job's pods meet on the rendezvous port."""
    peers = {key: value for key, value in pod.labels.items() if key != f"{LABEL}replica-index"}
    named = {port.get("name"): port.get("containerPort") for port in pod.container_spec.get("ports") or []}
    port = named.get("pytorchjob-port", 23456)
    return network_policy.applies(policy, direction, pod.labels) and network_policy.admits(
        policy, direction, peers, range(port, port + 1), named
    )


def hang(snapshot: Snapshot) -> Iterator[Cause]:
    """Ranks that run and are silent for longer than their phase allows."""
    running = [pod for pod in snapshot.pods if pod.running]
    if is_over(snapshot) or not running or not all(pod.running or pod.done for pod in snapshot.pods):
        return
    now = progress.of(snapshot)
    beats = [beat for beat in now.beats if beat.phase != "done" and of_this_try(beat, running)]
    limits = progress.limits(snapshot)
    late = [beat for beat in beats if (now.now - epoch(beat.time)).total_seconds() > limits.for_(beat)]
    if not late:
        return
    behind = min(late, key=lambda beat: (beat.step if beat.step is not None else -1, beat.time, beat.rank))
    silent = (now.now - epoch(behind.time)).total_seconds()
    where = behind.phase if behind.step is None else f"{behind.phase} after step {behind.step}"
    evidence = [
        f"rank {behind.rank} on {behind.host}: no heartbeat for {duration(silent)} in {where}"
        f" (limit {duration(limits.for_(behind))})"
    ]
    if len(late) > 1:
        others = [beat for beat in late if beat is not behind]
        evidence.append(
            f"{len(others)} of {len(beats)} ranks wait too, at step"
            f" {max((beat.step or 0) for beat in others)}: {_ranks(others)}"
        )
    summary = f"rank {behind.rank} hangs while {behind.phase}"
    yield Cause(
        "hang", Layer.HUNG, summary, evidence, behind.host, behind.rank, epoch(behind.time),
    )  # fmt: skip


def of_this_try(beat: Beat, running: list[JobPod]) -> bool:
    """Say whether a heartbeat is of a container that runs now, and not left by an earlier one."""
    started = [pod.started for pod in running if pod.name == beat.host]
    return any(at is not None and epoch(beat.time) >= at for at in started)


def _ranks(beats: list[Beat]) -> str:
    shown = ", ".join(str(beat.rank) for beat in beats[:8])
    return f"rank{'s' if len(beats) > 1 else ''} {shown}{' ...' if len(beats) > 8 else ''}"


def newest_line(snapshot: Snapshot) -> datetime | None:
    """Return when any of the job's pods last wrote a line, None where that was not seen."""
    times = [line.time for log in snapshot.logs for line in log_lines.read(log.text)[-3:] if line.time]
    return max(times, default=None)
