"""Causes of a failed job whose pods are gone: what events still show of them."""

import re
from collections.abc import Iterator
from datetime import datetime

from tools.core.timestamps import moment
from tools.job.diagnosis import exit_codes, failures, log_causes, signs
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.exit_codes import failure
from tools.job.diagnosis.resources import accelerators
from tools.job.snapshot import log_lines
from tools.job.snapshot.pod import template_specs
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object, name_of

# The event of training-operator v1.9.4 about a failed container, with the container's termination message.
EXIT_EVENT = re.compile(r"^Error pod (\S+) container \S+ exitCode: (-?\d+) terminated message: ?(.*)$", re.DOTALL)
# The kubelet's event about a container that containerd could not start.
START_EVENT = re.compile(r"^Error: failed to (?:create containerd task|start container)")
INCIDENT = 900.0  # seconds before the job's end in which a failure may have led to it


def ended(snapshot: Snapshot) -> Iterator[Cause]:
    """The operator failed the job, and neither pods nor failure records are left.

    Events outlive the pods by about an hour, and contain their exit codes and last lines.
    """
    condition = snapshot.condition("Failed")
    if condition is None or failures.failed_pods(snapshot) or any(failures.current_records(snapshot)):
        return
    parts = list(_failed_parts(snapshot))
    message = " ".join([str(condition.get("message", "")), *parts])
    at = moment(condition.get("lastTransitionTime"))
    evidence = [short(f"condition Failed: {condition.get('reason')}: {condition.get('message', '')}")]
    evidence += map(short, parts)
    if "deadline" in message.lower():
        summary = "the job ran longer than activeDeadlineSeconds"
        yield Cause("deadline", Layer.FAILED, summary, evidence, at=at)
        return
    exits = [event for event in _exits(snapshot) if _near(event_time(event), at)]
    starts = [event for event in _starts(snapshot) if _near(event_time(event), at)]
    causes = [_from_start(event) for event in starts[-1:]]
    causes += exit_codes.first_of_each(one for each in exits if (one := _from_event(snapshot, each)))
    yield from causes
    if not causes and "backoff" in message.lower():
        summary = "all restarts are used, and the failed pods left no trace"
        yield Cause("backoff", Layer.VICTIM, summary, evidence, at=at)


def _failed_parts(snapshot: Snapshot) -> Iterator[str]:
    """Yield why the Jobs of a JobSet have failed: the JobSet only says that one of them has."""
    for part in snapshot.parts:
        for one in (part.get("status") or {}).get("conditions") or []:
            if one.get("type") == "Failed" and one.get("status") == "True":
                yield f"{part.get('kind')} {name_of(part)}: {one.get('reason')}: {one.get('message', '')}"


def _exits(snapshot: Snapshot) -> Iterator[Object]:
    """Yield the operator's events about failed containers of this job."""
    for event in snapshot.job_events():
        uid = (event.get("involvedObject") or {}).get("uid")
        if uid in (None, snapshot.uid) and EXIT_EVENT.match(str(event.get("message", ""))):
            yield event


def _starts(snapshot: Snapshot) -> Iterator[Object]:
    """Yield the kubelets' events about containers of this job that did not start."""
    made = moment(snapshot.job["metadata"].get("creationTimestamp"))
    roles = "|".join(re.escape(role.name.lower()) for role in snapshot.workload.roles)
    names = re.compile(rf"{re.escape(snapshot.name)}-(?:(?:{roles})-)?\d+(?:-\d+)?(?:-\w{{5}})?")
    for event in snapshot.of("Event"):
        about, at = event.get("involvedObject") or {}, event_time(event)
        ours = about.get("kind") == "Pod" and names.fullmatch(str(about.get("name")))
        failed = event.get("reason") == "Failed" and START_EVENT.match(str(event.get("message", "")))
        if ours and failed and not (made and at and at < made):
            yield event


def _from_start(event: Object) -> Cause:
    message, pod = str(event["message"]), str(event["involvedObject"]["name"])
    evidence = [short(f"{pod}: {message}"), "from the kubelet's event: the pod is gone"]
    return failure(signs.cause_of("container-start", message, "command"), pod, evidence, pod, at=event_time(event))


def _near(event: datetime | None, end: datetime | None) -> bool:
    return event is None or end is None or (end - event).total_seconds() < INCIDENT


def _from_event(snapshot: Snapshot, event: Object) -> Cause | None:
    """Return the cause that a container's exit code and last lines in an event show."""
    match = EXIT_EVENT.match(str(event["message"]))
    assert match
    pod, code, text = match[1], int(match[2]), match[3]
    at = event_time(event)
    found = log_causes.first_cause(log_lines.read(text, pod))
    if found is not None and found.kind not in exit_codes.UNKNOWN:
        who = pod if found.rank is None else f"rank {found.rank}"
        evidence = [*found.cited(pod), f"from the operator's event, exit code {code}"]
        return found.cause(found.kind, who, evidence, pod, at)
    kind = exit_codes.kind_of(code, any(map(accelerators, template_specs(snapshot.workload))))
    if kind is None:
        return None
    last = (text.strip().splitlines() or ["no last line"])[-1]
    evidence = [short(f"{pod}: exit code {code}, {last}"), "from the operator's event: the pod is gone"]
    return failure(kind, pod, evidence, pod, at=at)
