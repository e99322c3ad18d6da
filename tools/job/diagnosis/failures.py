"""Causes of a job whose processes have failed: who failed first, of what, and who is only a victim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from tools.core.timestamps import epoch, moment
from tools.job.diagnosis import exit_codes, log_causes, node_health, startup
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.exit_codes import layer_of, what
from tools.job.diagnosis.resources import accelerators
from tools.job.metrics.progress import last_moved
from tools.job.snapshot import log_lines
from tools.job.snapshot.pod import End, JobPod
from tools.job.snapshot.snapshot import CURRENT, PREVIOUS, Snapshot, event_time
from tools.kube.manifests import Object
from training.run.failure import Failure
from training.run.failure import cause as first_of

WAITS_FOR_MASTER = "init-pytorch"  # of the operator: it ends when the master's name does not resolve
PROBE_LAG = 120.0  # seconds between a kubelet's word and the end of the container, its grace included
METRICS_LAG = 5.0  # seconds that a step's metrics may be written after its end
# What befalls a process without a fault of its own: a node that is not well explains it.
FROM_OUTSIDE = ("node-lost", "drained", "killed", "memory-fault")
DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted", "a pod of higher priority took its place"),
    "PreemptionByKubeScheduler": ("preempted", "a pod of higher priority took its place"),
    "EvictionByEvictionAPI": ("drained", "its node was drained"),
    "DeletionByTaintManager": ("node-lost", "its node was lost or tainted"),
    "DeletionByPodGC": ("node-lost", "its node is gone"),
    "TerminationByKubelet": ("evicted", "the kubelet ended it"),
}


@dataclass(frozen=True)
class Failed:
    """A pod that has failed and has not come back: how it ended, and where its last words stand."""

    pod: JobPod
    end: End | None
    which: str  # CURRENT | PREVIOUS
    init: str = ""  # the init container that has failed, empty where it is the training one

    @property
    def where(self) -> str:
        """Return the pod, with the container where it is not the training one, and the node."""
        inside = f", init container {self.init}," if self.init else ""
        return f"{self.pod.short}{inside} on {self.pod.node}"


def failures(snapshot: Snapshot) -> Iterator[Cause]:
    """The failure that led to the job's state, told by records, pods and logs together."""
    failed = failed_pods(snapshot)
    records = list(current_records(snapshot))
    if not failed and not (records and snapshot.condition("Failed")):
        return
    found = [_from_record(record) for record in [first_of(records)] if record]
    for one in failed:
        told = _from_status(one) or _from_log(snapshot, one) or _from_code(snapshot, one)
        if told is None or told.kind in ("drained", "killed", "crash"):
            told = _from_probe(snapshot, one) or told
        found += [_with_node(snapshot, one, told)] if told else []
    yield from exit_codes.first_of_each(found)


def failed_pods(snapshot: Snapshot) -> list[Failed]:
    """Return the pods that have failed and not come back: no step was taken since."""
    moved = last_moved(snapshot)
    found = []
    for pod in snapshot.pods:
        end = pod.end
        if broken := pod.broken_init:
            found.append(Failed(pod, broken[1], CURRENT, broken[0]))
        elif pod.phase == "Failed" or (pod.ended_for_good and end and end.code != 0):
            found.append(Failed(pod, end, CURRENT))
        elif pod.waiting[0] == "CrashLoopBackOff" or (pod.restarts and end and _not_since(end, pod, moved)):
            found.append(Failed(pod, end, PREVIOUS if pod.restarts else CURRENT))
    return found


def _not_since(end: End, pod: JobPod, moved: datetime | None) -> bool:
    """Say whether a restarted container has not been seen to get on since it ended."""
    if end.code == 0 or end.at is None:
        return False
    if pod.running:
        trained = end.began is not None and moved is not None and moved >= end.began
        return pod.restarts > 1 and not trained and (moved is None or moved <= end.at)
    return moved is None or moved <= end.at


def current_records(snapshot: Snapshot) -> Iterator[Failure]:
    """Yield the trainer's failure records that no step came after, and that are this job's."""
    moved = last_moved(snapshot)
    made = moment(snapshot.job["metadata"].get("creationTimestamp"))
    for item in ((snapshot.run or {}).get("failures") or {}).values():
        record = _record(item)
        if record is None or (made and record.time < made.timestamp() - 1):
            continue
        if moved is None or record.time >= moved.timestamp() - METRICS_LAG:
            yield record


def _record(item: Object) -> Failure | None:
    try:
        return Failure(
            kind=str(item["class"]),
            rank=int(item["rank"]),
            host=str(item["host"]),
            pid=int(item.get("pid") or 0),
            step=item.get("step"),
            message=str(item["message"]),
            exception=str(item.get("exception") or ""),
            time=float(item["time"]),
            phase=item.get("phase"),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _from_record(record: Failure) -> Cause:
    kind = log_causes.refine(record.kind, f"{record.exception}: {record.message}")
    where = "" if record.step is None else f" at step {record.step}"
    phase = f" while {record.phase}" if record.phase else ""
    evidence = [
        short(f"rank {record.rank} on {record.host}{where}{phase}: {record.exception}: {record.message}"),
        f"from the run's failure records, written {epoch(record.time):%H:%M:%S} UTC",
    ]
    at = epoch(record.time)
    return Cause(
        kind,
        layer_of(kind),
        what(kind, f"rank {record.rank}"),
        evidence,
        record.host,
        record.rank,
        at,
    )


def _from_status(failed: Failed) -> Cause | None:
    """Return what the pod's own status says, where it says more than an exit code."""
    pod, end = failed.pod, failed.end
    at = end.at if end else None
    if end and end.reason == "OOMKilled":
        evidence = [f"{failed.where}: OOMKilled, exit code {end.code}, memory limit {_memory_limit(failed)}"]
        return Cause("oom-host", Layer.FAILED, what("oom-host", pod.short), evidence, pod.name, at=at)
    if end and end.reason in ("StartError", "ContainerCannotRun"):
        kind = startup.start_error(end.message)
        evidence = [short(f"{failed.where}: {end.reason}, exit code {end.code}: {end.message}")]
        return Cause(kind, layer_of(kind), what(kind, pod.short), evidence, pod.name, at=at)
    if end and end.reason == "ContainerStatusUnknown":
        evidence = [short(f"{failed.where}: {end.reason}: {end.message}")]
        return Cause("node-lost", Layer.FAILED, f"{pod.short}: its node lost it", evidence, pod.name, at=at)
    disruption = pod.condition("DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        kind, summary = DISRUPTIONS.get(str(disruption.get("reason")), ("drained", "it was disrupted"))
        if kind == "evicted" and pod.status.get("reason") not in (None, "Evicted", "Preempting"):
            kind = "drained"
        evidence = [short(f"{pod.short}: {disruption.get('reason')}: {disruption.get('message', '')}")]
        return Cause(kind, Layer.FAILED, f"{pod.short}: {summary}", evidence, pod.name, at=at)
    reason = str(pod.status.get("reason") or "")
    message = str(pod.status.get("message") or "")
    evidence = [short(f"{pod.short} on {pod.node}: {reason}: {message}")]
    if reason == "Evicted":
        summary = f"{pod.short} was evicted by its node"
        return Cause("evicted", Layer.FAILED, summary, evidence, pod.name, at=at)
    if reason == "UnexpectedAdmissionError" or re.match(r"OutOf|\w*Affinity", reason):
        summary = f"the node {pod.node} refused {pod.short}"
        return Cause("node-refused", Layer.FAILED, summary, evidence, pod.name, at=at)
    if reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        return Cause("node-lost", Layer.FAILED, f"{pod.short}: its node is gone", evidence, pod.name, at=at)
    if reason == "DeadlineExceeded":
        return Cause("deadline", Layer.FAILED, f"{pod.short} took too long", evidence, pod.name, at=at)
    return None


def _from_log(snapshot: Snapshot, failed: Failed) -> Cause | None:
    """Return what the log of the failed container says, or the end of it in the pod's status."""
    pod, end = failed.pod, failed.end
    text = snapshot.log(pod.name, failed.which) or snapshot.log(pod.name, CURRENT)
    found, source = log_causes.first_cause(log_lines.read(text, pod.name)), "log"
    if found is None and end is not None:
        found, source = log_causes.first_cause(log_lines.read(end.message, pod.name)), "termination message"
    if found is None:
        return None
    at = found.line.time or (end.at if end else None)
    code = f", exit code {end.code}" if end else ""
    evidence = [
        short(f"{failed.where}: {found.line.text.strip()}"),
        f"from the pod's {source}{code}",
    ]
    kind = found.kind
    if kind == "crash" and end:
        kind = exit_codes.SIGNALS.get(end.code, kind)
    who = pod.short if found.rank is None else f"rank {found.rank}"
    where = found.host or pod.name
    return Cause(kind, layer_of(kind), what(kind, who), evidence, where, found.rank, at)


def _from_code(snapshot: Snapshot, failed: Failed) -> Cause | None:
    """Return what the exit code says, where nothing says more."""
    pod, end = failed.pod, failed.end
    if end is None:
        return None
    kind = exit_codes.kind_of(end.code, accelerators(pod.spec) > 0)
    kind = kind or ("command" if end.code in (126, 127) else "crash")
    if "exec format error" in end.message:
        kind = "image-architecture"
    if failed.init == WAITS_FOR_MASTER:
        kind = "rendezvous-dns"
    lines = [line for line in snapshot.log(pod.name, failed.which).splitlines() if line.strip()]
    last = f", last line: {lines[-1].strip()}" if lines else ", its log is empty or was not seen"
    evidence = [short(f"{failed.where}: exit code {end.code} {end.reason}{last} {end.message}")]
    summary = what(kind, pod.short) if kind != "crash" else f"{pod.short} failed with code {end.code}"
    # An exit code without a class may be anything's consequence.
    layer = Layer.VICTIM if kind == "crash" else layer_of(kind)
    return Cause(kind, layer, summary, evidence, pod.name, at=end.at)


def _from_probe(snapshot: Snapshot, failed: Failed) -> Cause | None:
    """Return that the kubelet has ended a container for its liveness probe, where its events say so."""
    at = failed.end.at if failed.end else None
    for event in snapshot.events("Pod", failed.pod.name)[::-1]:
        said, when = str(event.get("message", "")), event_time(event)
        near = at is None or when is None or abs((at - when).total_seconds()) < PROBE_LAG
        if event.get("reason") == "Killing" and "failed liveness probe" in said and near:
            summary = f"{failed.pod.short}: its liveness probe failed, and the kubelet ended it"
            evidence = [short(f"{failed.where}: {said}")]
            return Cause("killed", Layer.FAILED, summary, evidence, failed.pod.name, at=at)
    return None


def _with_node(snapshot: Snapshot, failed: Failed, told: Cause) -> Cause:
    """Return a cause from outside the process with what was wrong with the node, which then explains it."""
    if told.kind not in FROM_OUTSIDE:
        return told
    said = node_health.words(snapshot, failed.pod.node, told.at)
    evidence = [*told.evidence, *(one.text for one in said)]
    ill = next((one.kind for one in said if one.kind != "node-lost"), None)
    if ill is None:
        return replace(told, evidence=evidence)
    summary = node_health.SUMMARIES[ill].format(node=failed.pod.node)
    return replace(told, kind=ill, layer=Layer.FAILED, summary=summary, evidence=evidence)


def _memory_limit(failed: Failed) -> str:
    named = (one for one in failed.pod.spec.get("initContainers") or [] if one.get("name") == failed.init)
    container = next(named, {}) if failed.init else failed.pod.container_spec
    return str(((container.get("resources") or {}).get("limits") or {}).get("memory", "no limit"))
