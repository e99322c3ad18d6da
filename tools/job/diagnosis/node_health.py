"""The health of a node, from its conditions, labels and events.

They are written by EKS' node monitoring agent (a condition ...Ready for each part of a node, and events), by
HyperPod's health monitoring agent (labels), by node-problem-detector (conditions that are True if something
is wrong), and by Kubernetes itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tools.core.timestamps import moment
from tools.facts.node_labels import DEEP, HEALTH, hyperpod_faults
from tools.job.diagnosis import signs
from tools.job.diagnosis.cause import short
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object
from tools.kube.selectors import labels_of

INCIDENT = 900.0  # seconds before a failure in which an event of the node may explain it
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
# Events of the kubelet and of node-problem-detector about a process that the kernel killed.
KILLED = re.compile(r"SystemOOM|OOMKilling")
VICTIM = re.compile(r"victim process: ([^,]{1,64})|Killed process \d+ \(([^()]{1,64})\)")
OWN_PROCESS = re.compile(r"python|torchrun|pt_|ray::")  # torch names its threads pt_main_thread, pt_data_worker


@dataclass(frozen=True)
class Problem:
    """One problem of a node: the kind of cause that it stands for, its text, and when it was reported."""

    kind: str
    text: str
    at: datetime | None = None


def problems(snapshot: Snapshot, name: str | None, until: datetime | None = None) -> list[Problem]:
    """Return the problems of a node, accelerators first; events only from the time before `until`."""
    if name is None:
        return []
    node = snapshot.find("Node", name) or {"metadata": {}}
    found = [*_labelled(node), *_conditions(node), *_events(snapshot, name, until)]
    return sorted(found, key=lambda one: ("device", "node-unhealthy", "node-lost").index(one.kind))


def killed_for_memory(snapshot: Snapshot, name: str | None, until: datetime | None, command: str) -> str | None:
    """Return the event of a node that the kernel killed a process for its memory, None if there is none.

    A process with a name that is neither Python's nor in the `command` is another pod's.
    """
    for event in snapshot.events("Node", name or "")[::-1]:
        at = event_time(event)
        near = at is None or until is None or abs((until - at).total_seconds()) < INCIDENT
        victim = VICTIM.search(str(event.get("message")))
        program = (victim[1] or victim[2]) if victim else ""
        ours = program in command or OWN_PROCESS.match(program)
        if near and ours and KILLED.search(str(event.get("reason"))):
            return short(f"event {event.get('reason')}: {event.get('message', '')}")
    return None


SUMMARIES = {
    "device": "the accelerators of {node} are not healthy",
    "node-unhealthy": "the node {node} is not healthy",
    "node-lost": "the node {node} is being removed, or gone",
}


def _labelled(node: Object) -> Iterator[Problem]:
    labels = labels_of(node)
    faults = hyperpod_faults(labels)
    said = [f"{HEALTH}={labels[HEALTH]}"] if labels.get(HEALTH, "Schedulable") != "Schedulable" else []
    said += [f"{DEEP}=Failed"] if labels.get(DEEP) == "Failed" else []
    if said:
        # Without a fault type it is the accelerators, which the agent checks first. A node that is only
        # Unschedulable is being checked.
        broken = labels.get(DEEP) == "Failed" or "Pending" in labels.get(HEALTH, "")
        kind = signs.cause_of("nodes", " ".join(faults)) if faults else "device" if broken else "node-unhealthy"
        yield Problem(kind, ", ".join([*said, *faults]))


def _conditions(node: Object) -> Iterator[Problem]:
    for one in (node.get("status") or {}).get("conditions") or []:
        name, status = str(one["type"]), one.get("status")
        if name == "Ready" or name in PRESSURES:
            continue  # another rule reads Ready, and evicted pods show the others
        wrong = signs.first("node-conditions", f"{name} {one.get('reason', '')}")
        bad = status == "False" if name.endswith("Ready") else status == "True" and wrong
        if bad:
            text = f"{name} is {status}: {one.get('reason', '')}: {one.get('message', '')}"
            yield Problem(signs.cause_of("nodes", text), short(text), moment(one.get("lastTransitionTime")))


def _events(snapshot: Snapshot, name: str, until: datetime | None) -> Iterator[Problem]:
    end = until or snapshot.taken
    for event in snapshot.events("Node", name)[::-1]:
        reason, at = str(event.get("reason", "")), event_time(event)
        age = (end - at).total_seconds() if at else 0.0
        text = f"{reason}: {event.get('message', '')}"
        kind = signs.cause_of("node-events", text) if abs(age) <= INCIDENT else ""
        if kind == "node-lost" or (kind and event.get("type") == "Warning"):
            yield Problem(kind, short(f"event {text}"), at)
