"""A run's state as Prometheus reads it: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, 0.0.4).

Process 1 of each pod renders it from the run directory, so that the figures are there while ranks start again. The
pod of rank 0 tells the run's figures; every pod tells those of its own ranks. The agent renders it too, in images
with Python 3.8 and the standard library only.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Tuple

from training.checkpoint.layout import MANIFEST, committed_steps, step_name
from training.run import heartbeat, straggling
from training.run.directory import RunDir, last_records, read_json
from training.run.heartbeat import PHASES, Beat
from training.run.phases import Reader

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RECENT = 50  # newest steps that quantiles and medians are taken of
_TAIL = 4 << 20  # bytes: a record of a thousand ranks has 20 KiB
_QUANTILES = (0.5, 0.9, 0.99)
_LARGEST_RANKS = 16_384  # of one record
_NOT_FINITE = {name: float(name) for name in ("nan", "inf", "-inf")}  # as training.agent.metrics_file writes them

# Name, type, and what it is. A name ends with its unit.
FAMILIES: Mapping[str, tuple[str, str]] = {
    "trainyard_phase": ("gauge", "1 for what rank 0 does now, 0 for the other phases."),
    "trainyard_phase_seconds_total": ("counter", "Seconds of rank 0 in each phase, over all attempts of the run."),
    "trainyard_step": ("gauge", "Newest optimizer step."),
    "trainyard_steps_wanted": ("gauge", "Steps that the run shall have."),
    "trainyard_step_timestamp_seconds": ("gauge", "When the newest step was logged, in Unix time."),
    "trainyard_loss": ("gauge", "Training loss of the newest step, in nats a prediction."),
    "trainyard_heldout_loss": ("gauge", "Newest held-out loss, in nats a prediction."),
    "trainyard_gradient_norm": ("gauge", "Global norm of the newest step's gradients, before clipping."),
    "trainyard_learning_rate": ("gauge", "Learning rate of the newest step."),
    "trainyard_tokens_per_second": ("gauge", "Median of the newest steps, of all ranks together."),
    "trainyard_mfu_ratio": ("gauge", "Model FLOPs utilization: the median of the newest steps."),
    "trainyard_memory_bytes": ("gauge", "Largest memory of rank 0's device."),
    "trainyard_step_seconds": ("gauge", "Time of the newest steps, by quantile."),
    "trainyard_data_wait_seconds": ("gauge", "Median wait for data in the newest steps."),
    "trainyard_rank_step_seconds": ("gauge", "Median time of a rank before it exchanges gradients."),
    "trainyard_checkpoint_timestamp_seconds": ("gauge", "When the newest checkpoint was committed, in Unix time."),
    "trainyard_checkpoint_step": ("gauge", "Step of the newest checkpoint."),
    "trainyard_restarts_total": ("counter", "Starts of this pod's ranks after a failure, over all attempts."),
    "trainyard_rank_step": ("gauge", "Newest step of each rank of this pod."),
    "trainyard_rank_heartbeat_timestamp_seconds": ("gauge", "Newest heartbeat of each rank of this pod, in Unix time."),
    "trainyard_rank_own_seconds": ("gauge", "Seconds of each rank's own work in a step, of the newest steps."),
    "trainyard_rank_wait_seconds": (
        "gauge",
        "Seconds that each rank waited for others in a step, of the newest steps.",
    ),
    "trainyard_straggler": ("gauge", "How many times as long as the median the work of the slowest straggler takes."),
    "trainyard_rank_silent_seconds_max": ("gauge", "Longest silence of each rank of this pod in its phase."),
}

Sample = Tuple[str, Dict[str, str], float]  # family, labels beside the common ones, value


@dataclass(frozen=True)
class Here:
    """The pod that renders: its name, its host's name in heartbeats, whether its number is 0, and its restarts."""

    pod: str
    host: str
    first: bool
    restarts: int = 0


class Exposition:
    """Renders one run's state; it keeps what it has read of the phases."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._spent = _Spent(run.heartbeat)

    def text(self, here: Here) -> str:
        """Return all metrics that this pod can tell."""
        known = list(_beats(self._run.heartbeat))
        beats = [beat for beat in known if beat.host == here.host]
        first = next((beat for beat in beats if beat.rank == 0), None)
        samples = [*self._of_pod(here), *_of_ranks(beats)]
        if first is not None or (not known and here.first):  # a script that reports nothing has no heartbeats
            samples += self._of_run(first)
        return render(samples, {"run": self._run.name})

    def _of_pod(self, here: Here) -> Iterator[Sample]:
        yield "trainyard_restarts_total", {}, here.restarts + _earlier_restarts(self._run, here.pod)

    def _of_run(self, first: Beat | None) -> Iterator[Sample]:
        if first is not None:
            for phase in PHASES:
                yield "trainyard_phase", {"phase": phase}, int(phase == first.phase)
            for name, seconds in self._spent.seconds(first.time).items():
                yield "trainyard_phase_seconds_total", {"phase": name}, seconds
        yield from _of_steps(self._run)
        yield from _of_checkpoints(self._run.checkpoints)


class _Spent:
    """Seconds of rank 0 in each phase. Of an attempt's last phase, those up to the last heartbeat seen count."""

    def __init__(self, directory: Path) -> None:
        self._changes = Reader(heartbeat.changes_of(directory, 0))
        self._totals: dict[str, float] = {}
        self._open: tuple[str, float, str] | None = None  # phase, since when, attempt
        self._seen = 0.0

    def seconds(self, now: float) -> dict[str, float]:
        try:
            for change in self._changes.new():
                self._close(change.time if self._open and self._open[2] == change.attempt else self._seen)
                self._open = (change.phase, change.time, change.attempt)
        except OSError:
            return {}
        self._seen = max(self._seen, now)
        totals = dict(self._totals)
        if self._open is not None:
            phase, since, _ = self._open
            totals[phase] = totals.get(phase, 0.0) + max(0.0, self._seen - since)
        return totals

    def _close(self, end: float) -> None:
        if self._open is not None:
            phase, since, _ = self._open
            self._totals[phase] = self._totals.get(phase, 0.0) + max(0.0, end - since)


def render(samples: Iterable[Sample], common: Mapping[str, str]) -> str:
    """Return samples as text, each family together. `common` are labels of all of them."""
    by_family: dict[str, list[str]] = {}
    for family, labels, value in samples:
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in {**common, **labels}.items())
        by_family.setdefault(family, []).append(f"{family}{{{pairs}}} {float(value)!r}")
    lines = []
    for family, (kind, meaning) in FAMILIES.items():
        if family in by_family:
            lines += [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}", *by_family[family]]
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _beats(directory: Path) -> Iterator[Beat]:
    for path in sorted(directory.glob("rank-*.json"))[:_LARGEST_RANKS]:
        beat = heartbeat.read(path)
        if beat is not None:
            yield beat


def _of_ranks(beats: Iterable[Beat]) -> Iterator[Sample]:
    for beat in beats:
        rank = {"rank": str(beat.rank)}
        yield "trainyard_rank_heartbeat_timestamp_seconds", rank, beat.time
        yield "trainyard_rank_silent_seconds_max", rank, beat.longest_s
        for family, value in (
            ("trainyard_rank_step", beat.step), ("trainyard_rank_own_seconds", beat.own_s),
            ("trainyard_rank_wait_seconds", beat.wait_s),
        ):  # fmt: skip
            if value is not None:
                yield family, rank, value


def _of_steps(run: RunDir) -> Iterator[Sample]:
    recent = [record for record in last_records(run.metrics, _TAIL, RECENT) if is_number(record.get("step"))]
    wanted = _steps_wanted(run, recent)
    if wanted is not None:
        yield "trainyard_steps_wanted", {}, wanted
    if not recent:
        return
    for family, key, factor in (
        ("trainyard_step", "step", 1), ("trainyard_step_timestamp_seconds", "time", 1), ("trainyard_loss", "loss", 1),
        ("trainyard_gradient_norm", "grad_norm", 1), ("trainyard_learning_rate", "lr", 1),
        ("trainyard_memory_bytes", "memory_gib", 1 << 30),
    ):  # fmt: skip
        value: Any = recent[-1].get(key)
        value = _NOT_FINITE.get(value, value) if isinstance(value, str) else value
        if isinstance(value, float) or is_number(value):
            yield family, {}, value * factor
    for family, key in (
        ("trainyard_tokens_per_second", "tokens_per_s"), ("trainyard_mfu_ratio", "mfu"),
        ("trainyard_data_wait_seconds", "data_wait_s"),
    ):  # fmt: skip
        values = [record[key] for record in recent if is_number(record.get(key))]
        if values:
            yield family, {}, statistics.median(values)
    times = sorted(record["step_s"] for record in recent if is_number(record.get("step_s")))
    for quantile in _QUANTILES if times else ():
        yield "trainyard_step_seconds", {"quantile": str(quantile)}, times[round(quantile * (len(times) - 1))]
    yield from _of_rank_times(recent)
    if found := straggling.read(recent[-1].get("stragglers")):
        for rank in found.ranks:
            yield "trainyard_straggler", {"rank": str(rank)}, found.factor
    heldout = [line["loss"] for line in last_records(run.heldout) if is_number(line.get("loss"))]
    if heldout:
        yield "trainyard_heldout_loss", {}, heldout[-1]


def _of_rank_times(recent: list[dict[str, Any]]) -> Iterator[Sample]:
    """The median time of each rank, in the newest steps that have as many ranks as the last one."""
    rows = [row for row in (record.get("rank_step_s") for record in recent) if isinstance(row, list)]
    rows = [row for row in rows if len(row) == len(rows[-1]) <= _LARGEST_RANKS and all(map(is_number, row))]
    for rank, times in enumerate(zip(*rows)):
        yield "trainyard_rank_step_seconds", {"rank": str(rank)}, statistics.median(times)


def _of_checkpoints(directory: Path) -> Iterator[Sample]:
    steps = committed_steps(directory)
    if not steps:
        return
    yield "trainyard_checkpoint_step", {}, steps[-1]
    try:
        written = (directory / step_name(steps[-1]) / MANIFEST).stat().st_mtime
    except OSError:  # it is being removed
        return
    yield "trainyard_checkpoint_timestamp_seconds", {}, written


def _steps_wanted(run: RunDir, recent: list[dict[str, Any]]) -> float | None:
    """From the trainer's configuration, or from what a script reports with its steps."""
    try:
        wanted = read_json(run.run)["config"]["train"]["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        wanted = recent[-1].get("steps") if recent else None
    return wanted if is_number(wanted) else None


def _earlier_restarts(run: RunDir, pod: str) -> int:
    """Restarts of this pod's ranks in earlier starts, each of which is one more."""
    rows = [row for row in last_records(run.path / "attempts.jsonl", _TAIL) if row.get("pod") == pod]
    return sum(1 + (row["restarts"] if is_number(row.get("restarts")) else 0) for row in rows)


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
