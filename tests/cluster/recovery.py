"""How a job comes back from a fault: what happened when, from the files of its run and from its pods."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tests.cluster.api import Object
from tests.cluster.training import Training

SECONDS = 600
# A heartbeat's phases, as what a rank has behind it when it enters them.
BEHIND = {"joining": "imported", "loading": "joined and has its data", "training": "loaded"}
STARTING = ("joining", "preparing data", "loading", "compiling")  # no rank comes back to these


@dataclass
class Recovery:
    """Seconds from a fault to the following events. `step` is the first step after it."""

    step: float = 0.0
    events: dict[str, float] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)  # ranks whose process has started since

    def __str__(self) -> str:
        rows = sorted((seconds, what) for what, seconds in self.events.items())
        return ", ".join(f"{what} {seconds:.1f}" for seconds, what in rows)


def watch(training: Training, at: float, happened: Callable[[], bool]) -> Recovery:
    """Watch a job from its fault, at `at` seconds since 1970, until new ranks have done a step.

    Raises TimeoutError when the fault has not `happened`, or when training does not continue.
    """
    found = Recovery()
    training.kube.wait("the fault", lambda: _look(training, at, found) or happened(), SECONDS)
    found.events["fault seen"] = time.time() - at

    def goes_on() -> bool:
        _look(training, at, found)
        since = found.events.get("rank 0 loaded")
        later = [line["time"] - at for line in training.metrics() if since and line["time"] - at > since]
        found.step = min(later, default=0.0)
        return bool(later)

    training.kube.wait("training to go on", goes_on, SECONDS)
    found.events["next step"] = found.step
    for index in (0, 1):
        pod = training.pod(index)
        found.events |= {f"pod {index} {what}": when - at for what, when in _starts(pod).items() if when > at}
    attempts = training.run / "attempts.jsonl"  # of pods with our entrypoint
    for line in attempts.read_text(encoding="utf-8").splitlines() if attempts.exists() else []:
        end = json.loads(line)
        if end["ended"] > at:
            number = end["pod"].rpartition("-")[2]
            found.events[f"pod {number} ended as {end['class']}"] = end["ended"] - at
    return found


def _look(training: Training, at: float, found: Recovery) -> bool:
    """Note the phases of ranks that have started since."""
    for rank, beat in training.beats().items():
        if beat["time"] > at and beat["phase"] in STARTING:
            found.fresh.add(rank)
        if rank in found.fresh and beat["phase"] in BEHIND:
            found.events.setdefault(f"rank {rank} {BEHIND[beat['phase']]}", beat["time"] - at)
    return False


def _starts(pod: Object) -> dict[str, float]:
    """Return when a pod was created and its container started, in seconds since 1970."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    times = {"made": (pod.get("metadata") or {}).get("creationTimestamp")}
    if statuses:
        times["started"] = statuses[0]["state"].get("running", {}).get("startedAt")
    return {what: datetime.fromisoformat(text).timestamp() for what, text in times.items() if text}
