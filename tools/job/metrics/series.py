"""The metrics of a run by step, from metrics.jsonl or a trainer's log; its restarts and its remaining time.

A value that a line does not contain is None: a trainer that prints samples/s has no tokens/s.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tools.job.snapshot import Line
from training.run import trainer_logs
from training.run.straggling import Straggling
from training.run.trainer_logs import RESTART


@dataclass(frozen=True)
class Record:
    """One logged step. `time` is in seconds since 1970, `mfu` is between 0 and 1."""

    loss: float | None = None
    step: int | None = None
    steps: int | None = None  # of the whole run
    time: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    mfu: float | None = None
    step_s: float | None = None
    data_wait_s: float | None = None
    rank_step_s: tuple[float, ...] = ()
    memory_gib: float | None = None
    epoch: float | None = None
    stragglers: Straggling | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the known values for JSON, which has no nan: such a number becomes its name."""
        found = {key: value for key, value in asdict(self).items() if value not in (None, ())}
        return {key: plain(value) for key, value in found.items()}


@dataclass(frozen=True)
class RunMetrics:
    """The records of one run, those of its held-out loss, and what neuron_parallel_compile printed in its log."""

    name: str
    records: list[Record]
    compiler: list[str] = field(default_factory=list)
    heldout: list[Record] = field(default_factory=list)

    def curve(self, key: str) -> Iterator[tuple[float, float]]:
        """Yield (step, value) of the records that have both, if the value is finite; `heldout` is a key too."""
        for record in self.heldout if key == "heldout" else self.records:
            value = record.loss if key == "heldout" else getattr(record, key)
            if record.step is not None and value is not None and math.isfinite(value):
                yield float(record.step), float(value)


COLUMNS = tuple(one.name for one in fields(Record) if one.name not in ("rank_step_s", "stragglers"))


def from_jsonl(lines: Iterable[str]) -> list[Record]:
    """Return the records of a metrics.jsonl without the incomplete line of a killed process."""
    parsed = (trainer_logs.from_json(line) for line in lines)
    return [Record(**values) for values in parsed if values is not None and "step" in values]


def from_log(lines: Iterable[Line]) -> list[Record]:
    """Return the records in the log of a known trainer, one per step, in the log's order.

    Lines of several ranks about one step become one record, and so do several lines of one rank.
    """
    found = []
    steps = trainer_logs.Steps()
    time: float | None = None
    for line in lines:
        time = line.time.timestamp() if line.time else time
        found.append(steps.take(line.text, time, line.pod))
    return [Record(**values) for values in [*found, steps.last] if values]


def progress(records: list[Record]) -> Record | None:
    """Return the newest record that has a step."""
    return next((record for record in reversed(records) if record.step is not None), None)


@dataclass(frozen=True)
class Gap:
    """A restart: training stopped after step `before` and continued at step `after`, `seconds` later."""

    before: int
    after: int
    seconds: float | None


def gaps(records: list[Record]) -> list[Gap]:
    """Return the interruptions of a run: steps that go back, or a pause much longer than a step.

    A trainer that counts the steps of each epoch starts again with each epoch: that is not an interruption.
    """
    return [gap for _, gap in _breaks([record for record in records if record.step is not None])]


def since(records: list[Record], moment: float) -> list[Record]:
    """Return the steps of the current attempt: those after the last restart, and after `moment`."""
    steps = [record for record in records if record.step is not None]
    starts = [index for index, gap in _breaks(steps) if gap.after <= gap.before]
    of_now = steps[starts[-1] if starts else 0 :]
    return [record for record in of_now if record.time is None or record.time >= moment]


def _breaks(steps: list[Record]) -> Iterator[tuple[int, Gap]]:
    """Yield each interruption with the index of the record after it."""
    pauses = [
        later.time - earlier.time
        for earlier, later in itertools.pairwise(steps)
        if earlier.time is not None and later.time is not None
    ]
    usual = statistics.median(pauses) if pauses else 0.0
    for index, (earlier, later) in enumerate(itertools.pairwise(steps), 1):
        assert earlier.step is not None
        assert later.step is not None
        pause = later.time - earlier.time if earlier.time is not None and later.time is not None else None
        long = pause is not None and pause > max(RESTART, 10 * usual)
        back = later.step <= earlier.step and not _next_epoch(earlier, later, steps[0], pause is None or long)
        if back or long:
            yield index, Gap(earlier.step, later.step, pause)


def _next_epoch(earlier: Record, later: Record, first: Record, paused: bool) -> bool:
    """Return whether the steps start again with an epoch: a new number, or the first step without a pause."""
    if earlier.epoch is not None and later.epoch is not None:
        return math.floor(later.epoch) > math.floor(earlier.epoch)
    return not paused and later.step == first.step


def eta(records: list[Record], steps: int | None = None, recent: int = 50) -> tuple[float, float] | None:
    """Return bounds of the remaining time in seconds, None if the records are not enough.

    They are the number of remaining steps times the lower and upper quartile of the seconds per step, over
    the latest `recent` steps. `steps` is the length of the run if the records do not contain it.
    """
    last = progress(records)
    total = steps or (last.steps if last else None)
    if last is None or last.step is None or not total:
        return None
    paces = _paces(records)[-recent:]
    if len(paces) < 3:
        return None
    low, _, high = statistics.quantiles(paces, n=4)
    left = max(0, total - last.step)
    return left * max(0.0, low), left * max(0.0, high)


def _paces(records: list[Record]) -> list[float]:
    """Return the seconds of each step: by the records' times, which include pauses, else by `step_s`."""
    paces = []
    known = [record for record in records if record.step is not None]
    for earlier, later in itertools.pairwise(known):
        assert earlier.step is not None
        assert later.step is not None
        if later.step <= earlier.step:
            continue
        if earlier.time is not None and later.time is not None:
            paces.append((later.time - earlier.time) / (later.step - earlier.step))
        elif later.step_s is not None:
            paces.append(later.step_s)
    return paces


def plain(value: Any) -> Any:
    """Return a value for JSON: the name of a number that is not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def median(records: list[Record], key: str, recent: int = 50) -> float | None:
    """Return the median of a value over the latest records that have it."""
    values = [value for record in records if (value := getattr(record, key)) is not None]
    return statistics.median(values[-recent:]) if values else None
