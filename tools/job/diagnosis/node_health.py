"""What is known of the health of a node: its conditions, the labels and taints of agents, and its events.

The agents: EKS' node monitoring agent (a condition ...Ready for each part of a node, and events), HyperPod's
health monitoring agent (labels and a taint), node-problem-detector (conditions that are True when something
is wrong), and Kubernetes itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tools.core.timestamps import moment
from tools.job.diagnosis.cause import short
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object
from tools.kube.selectors import labels_of

HYPERPOD = "sagemaker.amazonaws.com/"
HEALTH, DEEP = f"{HYPERPOD}node-health-status", f"{HYPERPOD}deep-health-check-status"
FAULTS = ("fault-types", "fault-reasons", "fault-type", "fault-reason")
INCIDENT = 900.0  # seconds before a failure in which what a node has met may have led to it
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
# What a message or a reason is about. The words of the agents: NvidiaXID79Error, NeuronHBMUncorrectableError.
ACCELERATOR = re.compile(
    r"(?i)\bxid|nvidia|nvlink|nvswitch|\bgpus?\b|accelerat|neuron|dcgm|double.bit|\becc\b"
)
# Of conditions that are not called Ready some are True when all is well (EtcdIsVoter of k3s).
PROBLEM = re.compile(
    r"(?i)deadlock|corrupt|read-?only|unhealthy|problem|error|fail|frequent|xid|lost|oops|hung|degraded"
)
# Words of events that mean no harm: a device plugin that starts, a node that is there again.
GOOD = re.compile(
    r"(?i)IsReady|NodeReady\b|NodeHas(?:Sufficient|No)|Registered|Starting|Monitoring is active"
)
LOST = re.compile(r"NodeNotReady|Rebooted|Shutdown|(?:Deleting|Removing)Node|(?i:interrupt|terminat|reclaim)")


@dataclass(frozen=True)
class Word:
    """Something that is wrong with a node: `kind` is the cause that it stands for, `at` when it was said."""

    kind: str
    text: str
    at: datetime | None = None


def words(snapshot: Snapshot, name: str | None, until: datetime | None = None) -> list[Word]:
    """Return what is wrong with a node, accelerators first; events only of the time before `until`."""
    if name is None:
        return []
    node = snapshot.find("Node", name) or {"metadata": {}}
    found = [*_labelled(node), *_conditions(node), *_events(snapshot, name, until)]
    return sorted(found, key=lambda word: ("device", "node-unhealthy", "node-lost").index(word.kind))


SUMMARIES = {
    "device": "the accelerators of {node} are not well",
    "node-unhealthy": "the node {node} is not well",
    "node-lost": "the node {node} is going, or gone",
}


def _kind(text: str) -> str:
    return "device" if ACCELERATOR.search(text) else "node-unhealthy"


def _labelled(node: Object) -> Iterator[Word]:
    labels = labels_of(node)
    faults = [f"{key} {labels[HYPERPOD + key]}" for key in FAULTS if labels.get(HYPERPOD + key)]
    said = [f"{HEALTH}={labels[HEALTH]}"] if labels.get(HEALTH, "Schedulable") != "Schedulable" else []
    said += [f"{DEEP}=Failed"] if labels.get(DEEP) == "Failed" else []
    if said:
        # Without a word about the fault it is the accelerators that the agent looks at before all; a node
        # that is Unschedulable and nothing more is being checked.
        broken = labels.get(DEEP) == "Failed" or "Pending" in labels.get(HEALTH, "")
        kind = _kind(" ".join(faults)) if faults else "device" if broken else "node-unhealthy"
        yield Word(kind, ", ".join([*said, *faults]))


def _conditions(node: Object) -> Iterator[Word]:
    for one in (node.get("status") or {}).get("conditions") or []:
        name, status = str(one["type"]), one.get("status")
        if name == "Ready" or name in PRESSURES:
            continue  # the first is a node that does not answer, the others are said of evicted pods
        wrong = PROBLEM.search(f"{name} {one.get('reason', '')}") is not None
        bad = status == "False" if name.endswith("Ready") else status == "True" and wrong
        if bad:
            text = f"{name} is {status}: {one.get('reason', '')}: {one.get('message', '')}"
            yield Word(_kind(text), short(text), moment(one.get("lastTransitionTime")))


def _events(snapshot: Snapshot, name: str, until: datetime | None) -> Iterator[Word]:
    end = until or snapshot.taken
    for event in snapshot.events("Node", name)[::-1]:
        reason, at = str(event.get("reason", "")), event_time(event)
        age = (end - at).total_seconds() if at else 0.0
        text = f"{reason}: {event.get('message', '')}"
        if age > INCIDENT or age < -INCIDENT or GOOD.search(reason):
            continue
        if LOST.search(reason):
            yield Word("node-lost", short(f"event {text}"), at)
        elif event.get("type") == "Warning" and ACCELERATOR.search(text):
            yield Word("device", short(f"event {text}"), at)
