"""A process that ended without an error and without training: what its log shows of steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.metrics import progress, series
from tools.job.metrics.series import Record
from tools.job.snapshot import log_lines
from tools.job.snapshot.log_lines import Line
from tools.job.snapshot.snapshot import Snapshot

# What scripts print that end with exit code 0 because they cannot train here.
_DEVICES = r"(?:gpus?|devices?|accelerators?)\b"
GAVE_UP = re.compile(
    rf"(?i)\b(?:not enough|insufficient|too few) (?:\w+ ){{0,2}}(?:{_DEVICES}|(?:ranks?|workers?|nodes?)\b)"
    r"|\b(?:requires?|needs?|expects?) (?:at least |a minimum of |more than )(?:\d+|one|two|an?)"
    rf" (?:\w+ ){{0,2}}{_DEVICES}"
    rf"|\bat least (?:\d+|one|two) (?:\w+ ){{0,2}}{_DEVICES} (?:are |is )?(?:required|needed)"
    rf"|\bno (?:cuda |cuda-capable )?{_DEVICES} (?:\w+ ){{0,2}}(?:found|available|detected)\b"
    r".{0,80}\b(?:exit|skip|abort|quit|stop)"
    r"|\b(?:skipping|nothing to|will not|won't|cannot) (?:the )?train(?:ing)?\b"
    r"|\btraining (?:is |was )?skipped\b"
)
# Signs of work in words that no reader of metrics knows. Benchmarks and preparations do not train either.
BUSY = re.compile(
    r"(?i)\b(?:epochs?|iter(?:ation)?s?|steps?|batch(?:es)?|loss|acc(?:uracy)?|perplexity|reward|throughput|tokens?/s"
    r"|it/s|s/it|samples?/s|busbw|algbw|bandwidth|gb/s|tflops|latency|saved|saving|checkpoint|eval\w*|validat\w*"
    r"|download\w*|preprocess\w*|tokeniz\w*|convert\w*|prepar\w*|merg\w*|export\w*|upload\w*|complete\w*|finished"
    r"|succe\w+|passed|done)\b|\d%\|"
)
TRAINS = re.compile(
    r"(?i)train|finetune|fine-tune|pretrain|\bsft\b|torchrun|deepspeed|accelerate|torch\.distributed"
)
OTHER_WORK = re.compile(
    r"(?i)_perf\b|nccl.?test|bench|prepare|preproc|download|convert|tokeniz|evaluat|export"
)
WORKED = 3  # lines with numbers of steps after a line of GAVE_UP: the program has continued
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


def look(lines: list[Line], cut: bool) -> Look:
    """Return what the lines of a log show. `cut`: the log's begin is missing."""
    records = series.from_log(lines)
    last = next((line for line in reversed(lines) if line.text.strip()), None)
    at = next((index for index, line in enumerate(lines) if GAVE_UP.search(line.text)), None)
    gave_up = None if at is None or _continued(lines[at + 1 :]) else lines[at]
    busy = any(BUSY.search(line.text) for index, line in enumerate(lines) if index != at)
    return Look(records, busy, gave_up, last, not cut and last is not None)


def _continued(lines: list[Line]) -> bool:
    """Return whether steps follow, in whatever form: lines of work with numbers, which are not all equal."""
    work = (line.text for line in lines if BUSY.search(line.text) and any(map(str.isdigit, line.text)))
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
    seen = [look(lines, len(lines) >= CUT) for lines in logs]
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
    return TRAINS.search(words) is not None and not OTHER_WORK.search(words)
