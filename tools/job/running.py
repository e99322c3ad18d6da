"""Causes of a job that runs and does not get on, or less fast than it could."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tools.facts.instances import EFA
from tools.job import loglines, progress
from tools.job.before import is_over
from tools.job.cause import Cause, Layer, short
from tools.job.metrics import Record
from tools.job.placement import requests, selects
from tools.job.pod import JobPod
from tools.job.snapshot import Snapshot
from tools.job.times import duration, epoch, moment
from tools.operator_rules import LABEL
from training.heartbeat import Beat

Object = dict[str, Any]
RECENT = 20  # steps that say how it goes now
STRAGGLES = 1.25  # times the others' median before the exchange
SHARE = 0.1  # of a step's time: less than that is not worth a word
WAITS_FOR_DATA = 0.3  # of a step's time
SLOWED = 0.7  # of the speed that the same run has had
SOCKET = re.compile(r"NCCL INFO (?:.*\b)?(?:NET/Socket|Using network Socket)", re.IGNORECASE)
OFI = re.compile(r"NET/OFI.*Selected [Pp]rovider is efa|Using network (?:AWS Libfabric|OFI|Libfabric)")


def lost_nodes(snapshot: Snapshot) -> Iterator[Cause]:
    """A pod's node does not answer."""
    if is_over(snapshot):
        return
    for pod in snapshot.pods:
        node = snapshot.find("Node", pod.node) if pod.node else None
        if pod.node and node is None and snapshot.saw("Node"):
            evidence = [f"{pod.short} is on {pod.node}, which the cluster no longer has"]
            yield Cause("node-lost", Layer.FAILED, f"the node of {pod.short} is gone", evidence, pod.name)
            return
        ready = _condition(node or {}, "Ready")
        if ready and ready.get("status") != "True":
            at = moment(ready.get("lastTransitionTime"))
            evidence = [
                short(f"{pod.short} is on {pod.node}: Ready is {ready['status']}: {ready.get('message', '')}")
            ]
            summary = f"the node of {pod.short} does not answer"
            yield Cause("node-lost", Layer.FAILED, summary, evidence, pod.name, at=at)
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
    for policy in snapshot.of("NetworkPolicy"):
        if _keeps_apart(policy, first):
            name = policy["metadata"]["name"]
            others = [other for other in snapshot.of("NetworkPolicy") if _lets_in(other, first)]
            if not others:
                summary = f"the NetworkPolicy {name} keeps the job's pods from each other"
                evidence = [f"it selects {first.name}, and no rule of any policy lets its own job's pods in"]
                yield Cause("network-policy", Layer.BLOCKED, summary, evidence, first.name)
                return


def _names(snapshot: Snapshot, kind: str) -> str:
    return ", ".join(item["metadata"]["name"] for item in snapshot.of(kind)[:4]) or "none"


def _keeps_apart(policy: Object, pod: JobPod) -> bool:
    spec = policy.get("spec") or {}
    types = spec.get("policyTypes") or ["Ingress"]
    return "Ingress" in types and selects(spec.get("podSelector"), pod.labels) and not _lets_in(policy, pod)


def _lets_in(policy: Object, pod: JobPod) -> bool:
    """Say whether a policy lets pods with this pod's own labels reach it on its rendezvous port."""
    spec = policy.get("spec") or {}
    if not selects(spec.get("podSelector"), pod.labels):
        return False
    peer = {key: value for key, value in pod.labels.items() if key != f"{LABEL}replica-index"}
    for rule in spec.get("ingress") or []:
        sources = rule.get("from")
        from_here = not sources or any(
            "ipBlock" in one or (selects(one["podSelector"], peer) if "podSelector" in one else True)
            for one in sources
        )
        if from_here and _port_allowed(rule.get("ports"), pod):
            return True
    return False


def _port_allowed(ports: list[Object] | None, pod: JobPod) -> bool:
    if not ports:
        return True
    own = {port.get("name"): port.get("containerPort") for port in pod.container_spec.get("ports") or []}
    meeting = own.get("pytorchjob-port", 23456)
    for port in ports:
        wanted = port.get("port")
        number = own.get(wanted, wanted)
        if port.get("protocol", "TCP") == "TCP" and (
            number is None or number == meeting or number <= meeting <= port.get("endPort", number)
        ):
            return True
    return False


def hang(snapshot: Snapshot) -> Iterator[Cause]:
    """Ranks that run and are silent for longer than their phase allows."""
    running = [pod for pod in snapshot.pods if pod.running]
    if is_over(snapshot) or not running or not all(pod.running or pod.done for pod in snapshot.pods):
        return
    now = progress.of(snapshot)
    beats = [beat for beat in now.beats if beat.phase != "done" and _of_this_try(beat, running)]
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


def _of_this_try(beat: Beat, running: list[JobPod]) -> bool:
    """Say whether a heartbeat is of a container that runs now, and not left by an earlier one."""
    started = [pod.started for pod in running if pod.name == beat.host]
    return any(at is not None and epoch(beat.time) >= at for at in started)


def _ranks(beats: list[Beat]) -> str:
    shown = ", ".join(str(beat.rank) for beat in beats[:8])
    return f"rank{'s' if len(beats) > 1 else ''} {shown}{' ...' if len(beats) > 8 else ''}"


def straggler(snapshot: Snapshot) -> Iterator[Cause]:
    """One rank takes longer than the others before they exchange gradients."""
    records = _recent(snapshot)
    rows = [record.rank_step_s for record in records if len(record.rank_step_s) > 1]
    steps = [record.step_s for record in records if record.step_s]
    if len(rows) < 5 or len({len(row) for row in rows}) != 1 or not steps:
        return
    medians = [statistics.median(row[rank] for row in rows) for rank in range(len(rows[0]))]
    worst = max(range(len(medians)), key=medians.__getitem__)
    others = statistics.median(value for rank, value in enumerate(medians) if rank != worst)
    more = medians[worst] - others
    if medians[worst] < STRAGGLES * others or more < SHARE * statistics.median(steps):
        return
    host = next((beat.host for beat in progress.of(snapshot).beats if beat.rank == worst), None)
    evidence = [
        f"rank {worst}{f' on {host}' if host else ''}: {medians[worst]:.3f} s before the exchange,"
        f" the others' median is {others:.3f} s, over {len(rows)} steps",
        f"a step takes {statistics.median(steps):.3f} s",
    ]
    summary = f"rank {worst} holds the others up by {more / statistics.median(steps):.0%} of a step"
    yield Cause("straggler", Layer.SLOW, summary, evidence, host, worst)


def data_wait(snapshot: Snapshot) -> Iterator[Cause]:
    """The steps wait for data."""
    records = [record for record in _recent(snapshot) if record.step_s and record.data_wait_s is not None]
    if len(records) < 5:
        return
    share = statistics.median((record.data_wait_s or 0) / (record.step_s or 1) for record in records)
    if share > WAITS_FOR_DATA:
        evidence = [f"{share:.0%} of a step is waiting for data, the median of {len(records)} steps"]
        yield Cause("data-wait", Layer.SLOW, "the steps wait for data", evidence)


def slow_network(snapshot: Snapshot) -> Iterator[Cause]:
    """NCCL talks TCP between nodes that have EFA."""
    if is_over(snapshot) or snapshot.replicas < 2:
        return
    for pod in snapshot.pods:
        asks = requests(pod.spec)
        has = snapshot.find("Node", pod.node or "") or {}
        efa = EFA in asks or EFA in ((has.get("status") or {}).get("allocatable") or {})
        if not efa:
            continue
        lines = loglines.read(snapshot.log(pod.name), pod.name)
        tcp = next((line for line in lines if SOCKET.search(line.text)), None)
        if tcp and not any(OFI.search(line.text) for line in lines):
            asked = "requests EFA" if EFA in asks else "requests no EFA, and its node has it"
            evidence = [short(f"{pod.short}: {tcp.text.strip()}"), f"the pod {asked}"]
            summary = "NCCL goes over TCP and not over EFA"
            yield Cause("slow-network", Layer.SLOW, summary, evidence, pod.name, at=tcp.time)
            return


def slowdown(snapshot: Snapshot) -> Iterator[Cause]:
    """The run is slower than it was."""
    if is_over(snapshot):
        return
    records = [record for record in progress.of(snapshot).records if _speed(record)]
    if len(records) < 4 * RECENT:
        return
    now = statistics.median(_speed(record) for record in records[-RECENT:])
    before = [
        statistics.median(_speed(record) for record in records[start : start + RECENT])
        for start in range(RECENT, len(records) - 2 * RECENT + 1, RECENT)
    ]
    best = statistics.median(before)
    if now < SLOWED * best:
        evidence = [f"{now:,.0f} tokens/s in the last {RECENT} steps, {best:,.0f} before"]
        yield Cause("slowdown", Layer.SLOW, f"the run has slowed to {now / best:.0%} of its speed", evidence)


def _speed(record: Record) -> float:
    return record.tokens_per_s or record.samples_per_s or 0.0


def _recent(snapshot: Snapshot) -> list[Record]:
    if is_over(snapshot):
        return []
    return progress.of(snapshot).records[-RECENT:]


def newest_line(snapshot: Snapshot) -> datetime | None:
    """Return when any of the job's pods last wrote a line, None where that was not seen."""
    times = [line.time for log in snapshot.logs for line in loglines.read(log.text)[-3:] if line.time]
    return max(times, default=None)
