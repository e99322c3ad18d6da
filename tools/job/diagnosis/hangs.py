"""Causes of a job that runs but makes no progress."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from tools.core.timestamps import duration, epoch, moment
from tools.job.diagnosis import failures, log_causes, node_health
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.resources import existing
from tools.job.metrics import progress
from tools.job.snapshot import log_lines
from tools.job.snapshot.log_lines import Line
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube import Object, network_policy
from training.run.heartbeat import Beat

TOGETHER = 3.0  # seconds between the last heartbeats of ranks that stopped at the same time
PATIENT, WARNS = 300.0, 120.0  # seconds that all containers run, and of warnings, before an obstacle is a cause
OTHERS = 6  # different lines between the warnings of a program that only waits: it counts its tries
WINDS_DOWN = 120.0  # seconds that other containers of a pod have to end after the training


def lost_nodes(snapshot: Snapshot) -> Iterator[Cause]:
    """The node of a pod does not answer."""
    if is_over(snapshot):
        return
    for pod in snapshot.pods:
        node = snapshot.find("Node", pod.node) if pod.node else None
        if pod.node and node is None and snapshot.saw("Node"):
            fact = f"{pod.short} is on {pod.node}, which the cluster no longer has"
            yield _lost(snapshot, pod, f"the node of {pod.short} is gone", fact)
            return
        conditions = ((node or {}).get("status") or {}).get("conditions") or []
        ready: Object = next((one for one in conditions if one["type"] == "Ready"), {})
        at = moment(ready.get("lastTransitionTime"))
        if ready and ready.get("status") != "True" and not _heartbeats_since(snapshot, pod, at):
            fact = f"{pod.short} is on {pod.node}: Ready is {ready['status']}: {ready.get('message', '')}"
            yield _lost(snapshot, pod, f"the node of {pod.short} does not answer", fact, at)
            return


def _lost(snapshot: Snapshot, pod: JobPod, summary: str, fact: str, at: datetime | None = None) -> Cause:
    """Return that a pod's node is lost, or what was wrong with the node before."""
    problems = node_health.problems(snapshot, pod.node, at)
    kind = problems[0].kind if problems else "node-lost"
    if kind != "node-lost":
        summary = node_health.SUMMARIES[kind].format(node=pod.node)
    evidence = [short(fact), *(problem.text for problem in problems)]
    return Cause(kind, Layer.FAILED, summary, evidence, pod.name, at=at)


def _heartbeats_since(snapshot: Snapshot, pod: JobPod, at: datetime | None) -> bool:
    """Return whether the pod's ranks wrote heartbeats after its node's kubelet went silent."""
    beats = [beat for beat in progress.of(snapshot).beats if beat.host == pod.name]
    return at is not None and bool(beats) and all(epoch(beat.time) > at for beat in beats)


def unhealthy_nodes(snapshot: Snapshot) -> Iterator[Cause]:
    """The job makes no progress, and one of its pods is on an unhealthy node."""
    stuck = any((snapshot.condition("Failed"), failures.failed_pods(snapshot), list(hang(snapshot))))
    if not stuck:
        return
    for pod in snapshot.pods:
        problems = node_health.problems(snapshot, pod.node, pod.end.at if pod.end else None)
        kind = problems[0].kind if problems else "node-lost"
        if kind != "node-lost":
            evidence = [f"{pod.short} is on {pod.node}: {one.text}" for one in problems if one.kind == kind]
            summary = node_health.SUMMARIES[kind].format(node=pod.node)
            yield Cause(kind, Layer.BLOCKED, summary, evidence, pod.name)
            return


def network(snapshot: Snapshot) -> Iterator[Cause]:
    """The ranks cannot meet: the rendezvous host has no Service, or a NetworkPolicy separates the pods.

    This is not a cause for a job that takes steps: its ranks have met.
    """
    if is_over(snapshot) or snapshot.replicas < 2 or progress.of(snapshot).step is not None:
        return
    pods = [pod for pod in snapshot.pods if pod.running or pod.restarts or pod.ended_for_good]
    if not pods:
        return
    first = snapshot.pods[0]
    named = first.name if snapshot.workload.kind == "PyTorchJob" else first.spec.get("subdomain")
    if named and snapshot.saw("Service") and snapshot.find("Service", named) is None:
        summary = f"Service {named} does not exist, so the rendezvous host's name does not resolve"
        evidence = [f"{len(snapshot.pods)} pods, Services: {existing(snapshot, 'Service')}"]
        yield Cause("service-missing", Layer.BLOCKED, summary, evidence, first.name)
        return
    policies = snapshot.of("NetworkPolicy")
    for direction, way in (("Ingress", "to it"), ("Egress", "from it")):
        if any(admits(policy, direction, first) for policy in policies):
            continue
        for policy in (one for one in policies if network_policy.applies(one, direction, first.labels)):
            summary = f"NetworkPolicy {policy['metadata']['name']} blocks traffic between the job's pods"
            evidence = [f"it selects {first.name}, and no policy allows traffic of the job's pods {way}"]
            yield Cause("network-policy", Layer.BLOCKED, summary, evidence, first.name)
            return


def admits(policy: Object, direction: str, pod: JobPod) -> bool:
    """Return whether a policy that applies to a pod lets its job's pods meet on the rendezvous port."""
    peers = {key: value for key, value in pod.labels.items() if not key.endswith("-index")}
    named = {port.get("name"): port.get("containerPort") for port in pod.container_spec.get("ports") or []}
    port = named.get("pytorchjob-port", 23456 if pod.role in ("master", "worker") else 29500)
    return network_policy.applies(policy, direction, pod.labels) and network_policy.admits(
        policy, direction, peers, range(port, port + 1), named
    )


def hang(snapshot: Snapshot) -> Iterator[Cause]:
    """Ranks that run, and have been silent for longer than their phase allows."""
    running = [pod for pod in snapshot.pods if pod.running]
    if is_over(snapshot) or not running or not all(pod.running or pod.done for pod in snapshot.pods):
        return
    now = progress.of(snapshot)
    beats = [beat for beat in now.beats if beat.phase != "done" and is_current(beat, running)]
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
            f"{len(others)} of {len(beats)} ranks also wait, at step"
            f" {max((beat.step or 0) for beat in others)}: {_ranks(others)}"
        )
    rank: int | None = behind.rank
    summary = f"rank {rank} hangs while {behind.phase}"
    together = {(beat.step, beat.phase) for beat in beats} == {(behind.step, behind.phase)}
    if 1 < len(late) == len(beats) and together and max(beat.time for beat in beats) - behind.time < TOGETHER:
        summary, rank = f"all {len(beats)} ranks hang while {behind.phase}", None
        evidence = [
            f"no heartbeat of any rank for {duration(silent)} in {where} (limit {duration(limits.for_(behind))})",
            "all stopped at the same time, so the heartbeats do not tell which rank holds the others up",
        ]
    yield Cause("hang", Layer.HUNG, summary, evidence, behind.host, rank, epoch(behind.time))


def waits(snapshot: Snapshot) -> Iterator[Cause]:
    """All pods run, none has taken a step, and one warns of the same obstacle again and again."""
    now, ages = progress.of(snapshot), [snapshot.age(pod.started) or 0.0 for pod in snapshot.pods]
    if is_over(snapshot) or now.step is not None or now.beats or min(ages, default=0.0) < PATIENT:
        return
    for pod in snapshot.pods:
        lines = log_lines.read(snapshot.log(pod.name), pod.name)
        early = sum((snapshot.age(line.time) or 0.0) > WARNS for line in lines)
        found, before = log_causes.waits(lines), log_causes.waits(lines[:early])
        if found is None or before is None or found.kind != before.kind:
            continue
        warned = ((line, log_causes.warning(line)) for line in lines[early:])
        if len({line.text for line, one in warned if one is None or one.kind != found.kind}) <= OTHERS:
            evidence = [*found.cited(f"{pod.short} on {pod.node}"), f"it already warned of this {duration(WARNS)} ago"]
            cause = found.cause(found.kind, pod.short, evidence, pod.name, before.line.time)
            yield replace(cause, layer=max(cause.layer, Layer.HUNG))
            return


def kept_alive(snapshot: Snapshot) -> Iterator[Cause]:
    """The training has ended with exit code 0, but another container keeps its pod, and so the job."""
    pods = snapshot.pods
    if is_over(snapshot) or not pods or not all(pod.done for pod in pods):
        return
    for pod in pods:
        name = pod.container.get("name")
        statuses = pod.status.get("containerStatuses") or []
        others = [one["name"] for one in statuses if one["name"] != name and "running" in (one.get("state") or {})]
        at = pod.end.at if pod.end else None
        if others and (snapshot.age(at) or 0.0) > WINDS_DOWN:
            summary = f"the training has ended, and the container {others[0]} keeps {pod.short} running"
            evidence = [f"{pod.short}: {name} ended with exit code 0, still running: {', '.join(others)}"]
            yield Cause("sidecar", Layer.HUNG, summary, evidence, pod.name, at=at)
            return


def is_current(beat: Beat, running: list[JobPod]) -> bool:
    """Return whether a heartbeat is from a container that runs now, not from an earlier one."""
    started = [pod.started for pod in running if pod.name == beat.host]
    return any(at is not None and epoch(beat.time) >= at for at in started)


def _ranks(beats: list[Beat]) -> str:
    shown = ", ".join(str(beat.rank) for beat in beats[:8])
    return f"rank{'s' if len(beats) > 1 else ''} {shown}{' ...' if len(beats) > 8 else ''}"


def newest_line(snapshot: Snapshot) -> datetime | None:
    """Return when a pod of the job last wrote a line that is not the one before it again, None without any."""
    logs = ([Line(""), *log_lines.read(log.text)] for log in snapshot.logs)
    new = (line.time for lines in logs for before, line in itertools.pairwise(lines) if line.text != before.text)
    return max(filter(None, new), default=None)
