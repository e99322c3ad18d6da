"""How far a job has come: by the heartbeats and metrics of its run, or else by its pods' logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tools.core.timestamps import epoch
from tools.job.metrics import series
from tools.job.metrics.series import Record
from tools.job.snapshot import log_lines
from tools.job.snapshot.snapshot import Snapshot
from training.run.hang_limits import Limits
from training.run.heartbeat import Beat


@dataclass(frozen=True)
class Progress:
    """The newest that is known: `beats` are heartbeats, `records` metrics, `source` where they are from."""

    source: str
    records: list[Record]
    beats: list[Beat]
    now: datetime

    @property
    def last(self) -> Record | None:
        """Return the newest record with a step."""
        return series.progress(self.records)

    @property
    def step(self) -> int | None:
        """Return the newest step."""
        last, steps = self.last, [beat.step for beat in self.beats if beat.step is not None]
        own = last.step if last and last.step is not None else None
        return max([*steps, *([own] if own is not None else [])], default=None)

    @property
    def phase(self) -> str | None:
        """Return what the ranks are doing, by the first rank's heartbeat."""
        return self.beats[0].phase if self.beats else None

    @property
    def moved(self) -> datetime | None:
        """Return when something last got on: the newest step or heartbeat."""
        times = [beat.time for beat in self.beats]
        last = self.last
        times += [last.time] if last and last.time is not None else []
        return epoch(max(times)) if times else None


def of(snapshot: Snapshot) -> Progress:
    """Return the progress that a snapshot holds: the run's files first, else the logs."""
    run = snapshot.run or {}
    now = epoch(float(run["now"])) if "now" in run else snapshot.taken
    beats = sorted(
        filter(None, map(_beat, (run.get("heartbeats") or {}).values())), key=lambda beat: beat.rank
    )
    records = series.from_jsonl(run.get("metrics") or [])
    if records or beats:
        return Progress("the run's own files", records, beats, now)
    logged = [series.from_log(log_lines.read(log.text, log.pod)) for log in snapshot.logs]
    longest = max(logged, key=lambda found: (_newest(found), len(found)), default=[])
    return Progress("the pods' logs" if longest else "nothing", longest, [], snapshot.taken)


def limits(snapshot: Snapshot) -> Limits:
    """Return the seconds of silence that the job's pods allow a rank: those of the guard in the pods."""
    for pod in snapshot.pods:
        entries = pod.container_spec.get("env") or []
        values = {str(one["name"]): str(one["value"]) for one in entries if one.get("value") is not None}
        try:
            found = Limits.of(values)
        except ValueError:
            continue
        return found if found.step else Limits()  # zero only switches the guard off
    return Limits()


def last_moved(snapshot: Snapshot) -> datetime | None:
    """Return when a step was last taken, None where nothing says so."""
    last = of(snapshot).last
    return epoch(last.time) if last and last.time is not None else None


def _newest(records: list[Record]) -> float:
    return max((record.time or 0.0 for record in records), default=0.0)


def _beat(item: Mapping[str, Any]) -> Beat | None:
    """Return a heartbeat. An image of another release may lack a value: the limits are then longer."""
    values = {"step": None, "pid": 0, "attempt": "", "beats": 0, "longest_s": 0.0, "count": 0, **item}
    try:
        return Beat(**{name: values[name] for name in Beat.__dataclass_fields__})
    except (KeyError, TypeError):
        return None
