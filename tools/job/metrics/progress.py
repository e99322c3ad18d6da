"""The progress of a job: from the heartbeats and metrics of its run, else from its pods' logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tools.core.timestamps import epoch
from tools.job.metrics import series
from tools.job.metrics.series import Record
from tools.job.snapshot import Snapshot, log_lines
from tools.job.snapshot.snapshot import OTHER
from training.run.hang_limits import Limits
from training.run.heartbeat import Beat


@dataclass(frozen=True)
class Progress:
    """Metrics and heartbeats of a job, with their source."""

    source: str
    records: list[Record]
    beats: list[Beat]
    now: datetime

    @property
    def last(self) -> Record | None:
        return series.progress(self.records)

    @property
    def step(self) -> int | None:
        return max((one.step for one in self._signs if one.step is not None), default=None)

    @property
    def phase(self) -> str | None:
        """The phase in the heartbeat of the first rank."""
        return self.beats[0].phase if self.beats else None

    @property
    def moved(self) -> datetime | None:
        """The time of the newest step or heartbeat."""
        times = [one.time for one in self._signs if one.time is not None]
        return epoch(max(times)) if times else None

    @property
    def _signs(self) -> list[Beat | Record]:
        return [*self.beats, *([self.last] if self.last else [])]


def of(snapshot: Snapshot) -> Progress:
    """Return the progress in a snapshot: from the run's files, else from the logs."""
    run = snapshot.run or {}
    now = epoch(float(run["now"])) if "now" in run else snapshot.taken
    beats = sorted(filter(None, map(_beat, (run.get("heartbeats") or {}).values())), key=lambda beat: beat.rank)
    records = series.from_jsonl(run.get("metrics") or [])
    if records or beats:
        return Progress("the run's own files", records, beats, now)
    logs = (log_lines.read(log.text, log.pod) for log in snapshot.logs if log.which != OTHER)
    logged = list(map(series.from_log, logs))
    longest = max(logged, key=lambda found: (_newest(found), len(found)), default=[])
    return Progress("the pods' logs" if longest else "nothing", longest, [], snapshot.taken)


def limits(snapshot: Snapshot) -> Limits:
    """Return the time limits of the hang detector in the job's pods."""
    for pod in snapshot.pods:
        try:
            found = Limits.of(pod.environment)
        except ValueError:
            continue
        return found if found.step else Limits()  # zero switches the detector off
    return Limits()


def last_moved(snapshot: Snapshot) -> datetime | None:
    """Return the time of the newest step."""
    last = of(snapshot).last
    return epoch(last.time) if last and last.time is not None else None


def _newest(records: list[Record]) -> float:
    return max((record.time or 0.0 for record in records), default=0.0)


def _beat(item: Mapping[str, Any]) -> Beat | None:
    """Return a heartbeat. An image of another release may not write every value."""
    values = {"step": None, "pid": 0, "attempt": "", "beats": 0, "longest_s": 0.0, "count": 0, **item}
    if not isinstance(values.get("rank"), int) or values.get("time") is None:
        return None
    try:
        return Beat(**{name: values[name] for name in Beat.__dataclass_fields__ if name in values})
    except (KeyError, TypeError):
        return None
