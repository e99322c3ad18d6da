"""A process that ended without an error and without training: what its log shows of steps."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.log_patterns import form
from tools.job.metrics import progress, series
from tools.job.metrics.series import Record
from tools.job.snapshot import log_lines
from tools.job.snapshot.log_lines import Line
from tools.job.snapshot.snapshot import Snapshot

WORKED = 3  # lines with numbers of steps after a line that gives up: the program has continued
COMMAND = 400  # characters of a command that tell what it does
CUT = 400  # lines of a log that are read of a pod: a shorter log is whole


@dataclass(frozen=True)
class Look:
    """What a log shows: whether a step was taken, the last one, signs of other work, and why it gave up."""

    records: list[Record]
    busy: bool
    gave_up: Line | None
    last: Line | None
    complete: bool

    @property
    def trained(self) -> bool:
        return bool(self.records)

    @property
    def step(self) -> int | None:
        """The last step."""
        return max((one.step for one in self.records if one.step is not None), default=None)


def look(lines: list[Line], cut: bool, records: list[Record]) -> Look:
    """Return what the lines of a log show, with the records of its steps. `cut`: the log's begin is missing."""
    last = next((line for line in reversed(lines) if line.text.strip()), None)
    at = next((index for index, line in enumerate(lines) if form("gave_up").search(line.text)), None)
    gave_up = None if at is None or _continued(lines[at + 1 :]) else lines[at]
    busy = any(form("busy").search(line.text) for index, line in enumerate(lines) if index != at)
    return Look(records, busy, gave_up, last, not cut and last is not None)


def _continued(lines: list[Line]) -> bool:
    """Return whether steps follow, in whatever form: lines of work with numbers, which are not all equal."""
    work = (line.text for line in lines if form("busy").search(line.text) and any(map(str.isdigit, line.text)))
    return len(set(itertools.islice(work, 10 * WORKED))) >= WORKED


def ended(snapshot: Snapshot) -> Iterator[Cause]:
    """The pods of a training job have ended with exit code 0, and nothing shows a training step."""
    pods = [pod for pod in snapshot.pods if pod.done]
    if not pods or len(pods) < len(snapshot.pods) or not _trains(snapshot):
        return
    now = progress.of(snapshot)
    logs = [log_lines.read(snapshot.log(pod.name), pod.short) for pod in pods]
    if now.beats or now.records or not all(logs):
        return
    seen = [look(lines, len(lines) >= CUT, series.from_log(lines)) for lines in logs]
    if any(one.trained or (one.busy and not one.gave_up) for one in seen):
        return
    shown = next((one.gave_up for one in seen if one.gave_up), seen[0].last)
    if shown and (any(one.gave_up for one in seen) or all(one.complete for one in seen)):
        summary = "the pods ended with exit code 0 without one training step"
        evidence = [short(f"{shown.pod}: {shown.text.strip()}"), "no step in logs, metrics or heartbeats"]
        yield Cause("no-steps", Layer.FAILED, summary, evidence, pods[0].name)


def _trains(snapshot: Snapshot) -> bool:
    """Return whether the pods' command looks like training, not like a benchmark or a preparation."""
    spec = snapshot.pods[0].container_spec
    words = " ".join(map(str, [*(spec.get("command") or []), *(spec.get("args") or [])]))[:COMMAND]
    return form("trains").search(words) is not None and not form("other_work").search(words)
