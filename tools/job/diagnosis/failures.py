"""Causes of a job whose processes have failed: which failed first, why, and which are only victims."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from tools.core.timestamps import epoch, moment
from tools.job.diagnosis import exit_codes, log_causes, log_patterns, node_health, signs
from tools.job.diagnosis.cause import OWN_TRAINER, Cause, Layer, short
from tools.job.diagnosis.exit_codes import failure, layer_of, summary_of
from tools.job.diagnosis.resources import accelerators
from tools.job.metrics.progress import last_moved
from tools.job.snapshot import log_lines
from tools.job.snapshot.pod import End, JobPod
from tools.job.snapshot.snapshot import CURRENT, OTHER, PREVIOUS, Snapshot, event_time
from tools.kube.manifests import Object
from training.run.failure import Failure
from training.run.failure import cause as first_of

WAITS_FOR_MASTER = "init-pytorch"  # the operator's init container: it fails if the master's name does not resolve
PROBE_LAG = 120.0  # seconds from a kubelet's event to the end of the container, with its grace period
PROBE = re.compile(r"failed (liveness|startup) probe")
RECOVERED = 600.0  # seconds that a restarted container runs
PROBE_ADVICE = "see in the rank's log why it did not answer; else raise the probe's timeoutSeconds and failureThreshold"
METRICS_LAG = 5.0  # seconds after a step's end in which its metrics are written
# Ends of a process without its own fault. An unhealthy node explains them.
FROM_OUTSIDE = ("node-lost", "drained", "killed", "memory-fault")


@dataclass(frozen=True)
class Failed:
    """A pod that has failed and has not recovered: how it ended, and which log has its last lines."""

    pod: JobPod
    end: End | None
    which: str  # CURRENT | PREVIOUS | OTHER
    other: str = ""  # the container that failed, empty for the training container

    @property
    def ended(self) -> JobPod:
        """The pod that has ended: a batch Job replaces it by another one."""
        return self.pod if self.other else self.pod.ended_last

    @property
    def container(self) -> Object:
        """The spec of the container that failed."""
        specs = [*(self.pod.spec.get("initContainers") or []), *(self.pod.spec.get("containers") or [])]
        named = (one for one in specs if one.get("name") == self.other)
        return next(named, {}) if self.other else self.pod.container_spec

    @property
    def where(self) -> str:
        init = any(one.get("name") == self.other for one in self.pod.status.get("initContainerStatuses") or [])
        inside = f", {'init ' if init else ''}container {self.other}," if self.other else ""
        return f"{self.pod.short}{inside} on {self.ended.node}"


def failures(snapshot: Snapshot) -> Iterator[Cause]:
    """The failures that led to the job's state, from failure records, pods and logs."""
    failed = failed_pods(snapshot)
    records = list(current_records(snapshot))
    if not failed and not (records and snapshot.condition("Failed")):
        return
    causes = [_from_record(record) for record in [first_of(records)] if record]
    for pod in failed:
        cause = _from_status(pod) or _from_log(snapshot, pod) or _from_code(snapshot, pod)
        if cause is None or cause.kind in ("drained", "killed", *exit_codes.UNKNOWN):
            cause = _from_probe(snapshot, pod) or _for_memory(snapshot, pod, cause) or cause
        causes += [_with_node(snapshot, pod, cause)] if cause else []
    yield from exit_codes.first_of_each(causes)


def failed_pods(snapshot: Snapshot) -> list[Failed]:
    """Return the pods that have failed and not recovered: no step was taken since."""
    moved = last_moved(snapshot)
    found = []
    for pod in snapshot.pods:
        end = pod.end
        if broken := pod.broken:
            found.append(Failed(pod, broken[1], OTHER, broken[0]))
        elif pod.phase == "Failed" or (pod.ended_for_good and end and end.code != 0):
            found.append(Failed(pod, end, CURRENT))
        elif pod.waiting[0] == "CrashLoopBackOff" or (
            pod.restarts and end and _stuck(end, pod, moved, snapshot.age(pod.started))
        ):
            found.append(Failed(pod, end, PREVIOUS if pod.restarts else CURRENT))
    return found


def _stuck(end: End, pod: JobPod, moved: datetime | None, age: float | None) -> bool:
    """Return whether there is no sign of progress since a container ended and was restarted `age` seconds ago.

    A trainer whose steps are not known has recovered if it runs much longer than the last time.
    """
    if end.code == 0 or end.at is None:
        return False
    if pod.running:
        before = (end.at - (end.began or end.at)).total_seconds()
        if moved is None and age is not None and age > max(RECOVERED, 2 * before):
            return False
        trained = end.began is not None and moved is not None and moved >= end.began
        return pod.restarts > 1 and not trained and (moved is None or moved <= end.at)
    return moved is None or moved <= end.at


def current_records(snapshot: Snapshot) -> Iterator[Failure]:
    """Yield the trainer's failure records of this job that no step came after."""
    moved = last_moved(snapshot)
    made = moment(snapshot.job["metadata"].get("creationTimestamp"))
    for item in ((snapshot.run or {}).get("failures") or {}).values():
        record = _record(item)
        if record is None or (made and record.time < made.timestamp() - 1):
            continue
        if moved is None or record.time >= moved.timestamp() - METRICS_LAG:
            yield record


def _record(item: Object) -> Failure | None:
    """Return a failure record, None for one that is not complete."""
    try:
        return Failure(
            kind=str(item["class"]), rank=int(item["rank"]), host=str(item["host"]),
            pid=int(item.get("pid") or 0), step=item.get("step"), message=str(item["message"]),
            exception=str(item.get("exception") or ""), time=float(item["time"]), phase=item.get("phase"),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


def _from_record(record: Failure) -> Cause:
    kind = log_causes.refine(record.kind, f"{record.exception}: {record.message}")
    where = "" if record.step is None else f" at step {record.step}"
    phase = f" while {record.phase}" if record.phase else ""
    at = epoch(record.time)
    evidence = [
        short(f"rank {record.rank} on {record.host}{where}{phase}: {record.exception}: {record.message}"),
        f"from the run's failure records, written {at:%H:%M:%S} UTC",
    ]
    cause = failure(kind, f"rank {record.rank}", evidence, record.host, record.rank, at)
    return replace(cause, trainer=OWN_TRAINER if record.phase else "")


def _from_status(failed: Failed) -> Cause | None:
    """Return the cause that the pod's status shows, if it shows more than an exit code."""
    pod, end = failed.ended, failed.end
    at = end.at if end else None
    if end and end.reason == "OOMKilled":
        evidence = [f"{failed.where}: OOMKilled, exit code {end.code}, memory limit {_memory_limit(failed)}"]
        return failure("oom-host", pod.short, evidence, pod.name, at=at)
    if end and end.reason in ("StartError", "ContainerCannotRun"):
        evidence = [short(f"{failed.where}: {end.reason}, exit code {end.code}: {end.message}")]
        return failure(signs.cause_of("container-start", end.message, "command"), pod.short, evidence, pod.name, at=at)
    # containerd's word for a container that it no longer finds, as after a restart of the node.
    if end and (end.reason == "ContainerStatusUnknown" or (end.reason, end.code) == ("Unknown", 255)):
        evidence = [short(f"{failed.where}: {end.reason}, exit code {end.code} {end.message}")]
        return Cause("node-lost", Layer.FAILED, f"{pod.short}: its node lost it", evidence, pod.name, at=at)
    disruption = pod.condition("DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        sign = signs.first("disruption", str(disruption.get("reason")))
        kind, summary = (sign.cause, sign.says) if sign else ("drained", "it was disrupted")
        if kind == "evicted" and pod.status.get("reason") not in (None, "Evicted", "Preempting"):
            kind = "drained"
        advice = _remedy(kind, f"{disruption.get('message')} {pod.status.get('message')}")
        evidence = [short(f"{pod.short}: {disruption.get('reason')}: {disruption.get('message', '')}")]
        return Cause(kind, Layer.FAILED, f"{pod.short}: {summary}", evidence, pod.name, at=at, advice=advice)
    reason, message = str(pod.status.get("reason") or ""), str(pod.status.get("message") or "")
    if sign := signs.first("pod-reason", reason):
        summary, advice = f"{pod.short}: {sign.says}", _remedy(sign.cause, message)
        evidence = [short(f"{pod.short} on {pod.node}: {reason}: {message}")]
        return Cause(sign.cause, Layer.FAILED, summary, evidence, pod.name, at=at, advice=advice)
    return None


def _remedy(kind: str, message: str) -> str | None:
    """Return what to do about an eviction by its message: not every one is for what the node is short of."""
    sign = signs.first("evicted", message) if kind == "evicted" else None
    return sign.fix if sign else None


def _from_log(snapshot: Snapshot, failed: Failed) -> Cause | None:
    """Return the cause that the failed container's log shows, or the log's end in the pod's status."""
    pod, end = failed.pod, failed.end
    text = snapshot.log(pod.name, failed.which) or ("" if failed.other else snapshot.log(pod.name, CURRENT))
    found, source = log_causes.first_cause(log_lines.read(text, pod.name)), "log"
    if found is None and end is not None:
        found, source = log_causes.first_cause(log_lines.read(end.message, pod.name)), "termination message"
    if found is None:
        return None
    code = f", exit code {end.code}" if end else ""
    evidence = [*found.cited(failed.where), f"from the pod's {source}{code}"]
    kind = exit_codes.with_signal(found.kind, found.exception, end.code if end else None)
    who = pod.short if found.rank is None else f"rank {found.rank}"
    at = found.line.time or (end.at if end else None)
    cause = found.cause(kind, who, evidence, pod.name, at)
    starts = [*(pod.container_spec.get("command") or []), *(pod.container_spec.get("args") or [])]
    return replace(cause, trainer=cause.trainer or (OWN_TRAINER if "training.entrypoint" in starts else ""))


def _from_code(snapshot: Snapshot, failed: Failed) -> Cause | None:
    """Return the cause that the exit code stands for."""
    pod, end = failed.pod, failed.end
    if end is None:
        return None
    kind = exit_codes.kind_of(end.code, accelerators(pod.spec) > 0)
    kind = kind or ("command" if end.code in (126, 127) else "crash")
    if "exec format error" in end.message:
        kind = "image-architecture"
    if failed.other == WAITS_FOR_MASTER:
        kind = "rendezvous-dns"
    lines = [line for line in snapshot.log(pod.name, failed.which).splitlines() if line.strip()]
    last = f", last line: {lines[-1].strip()}" if lines else ", its log is empty or not seen"
    evidence = [short(f"{failed.where}: exit code {end.code} {end.reason}{last} {end.message}")]
    sign = log_patterns.of_signal(end.code - 128)
    summary = summary_of(kind, pod.short) if kind != "crash" else f"{pod.short} failed with code {end.code}"
    summary = f"{pod.short}: {sign.says}" if sign else summary
    # An exit code without a class may be the consequence of anything.
    layer = Layer.VICTIM if kind == "crash" else layer_of(kind)
    return Cause(kind, layer, summary, evidence, pod.name, at=end.at, advice=sign.fix if sign else None)


def _from_probe(snapshot: Snapshot, failed: Failed) -> Cause | None:
    """Return that the kubelet ended a container for a probe, if its events show it."""
    at = failed.end.at if failed.end else None
    for event in snapshot.events("Pod", failed.ended.name)[::-1]:
        said, when = str(event.get("message", "")), event_time(event)
        near = at is None or when is None or abs((at - when).total_seconds()) < PROBE_LAG
        if event.get("reason") == "Killing" and (probe := PROBE.search(said)) and near:
            summary = f"{failed.pod.short}: its {probe[1]} probe failed, and the kubelet ended it"
            evidence = [short(f"{failed.where}: {said}")]
            return Cause("killed", Layer.FAILED, summary, evidence, failed.pod.name, at=at, advice=PROBE_ADVICE)
    return None


def _for_memory(snapshot: Snapshot, failed: Failed, cause: Cause | None) -> Cause | None:
    """Return that a process was killed for its memory, if an event of its node shows it."""
    if cause is None or cause.kind != "killed":
        return None
    command = f"{failed.container.get('command')} {failed.container.get('args')}"
    event = node_health.killed_for_memory(snapshot, failed.ended.node, cause.at, command)
    if event is None:
        return None
    summary = summary_of("oom-host", failed.pod.short)
    return replace(cause, kind="oom-host", summary=summary, evidence=[*cause.evidence, event])


def _with_node(snapshot: Snapshot, failed: Failed, cause: Cause) -> Cause:
    """Return a cause with what was wrong with the node, if the process ended without its own fault."""
    if cause.kind not in FROM_OUTSIDE:
        return cause
    problems = node_health.problems(snapshot, failed.ended.node, cause.at)
    evidence = [*cause.evidence, *(problem.text for problem in problems)]
    kind = next((problem.kind for problem in problems if problem.kind != "node-lost"), None)
    if kind is None:
        return replace(cause, evidence=evidence)
    summary = node_health.SUMMARIES[kind].format(node=failed.ended.node)
    return replace(cause, kind=kind, layer=Layer.FAILED, summary=summary, evidence=evidence)


def _memory_limit(failed: Failed) -> str:
    return str(((failed.container.get("resources") or {}).get("limits") or {}).get("memory", "no limit"))
