"""A run's metrics: one JSON line per step, TensorBoard's events, and at times a line for a person.

Values stay on the device until `flush`, which waits for the device once per `log_every` steps.
"""

from __future__ import annotations

import io
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeGuard

import torch

from training.device import Device
from training.distributed.ranks import Ranks
from training.run.directory import RunDir
from training.run.failure import LossError
from training.run.files import open_regular
from training.run.progress import line_seconds
from training.run.trainer_status import TrainerStatus
from training.trainer.events import HELDOUT_LOSS, TRAIN_LOSS, Events
from training.trainer.stragglers import Stragglers, Times, Work

_LONGEST_LINE = 1 << 24  # bytes of a line of metrics.jsonl: 100,000 ranks have a seventh of it


@dataclass(frozen=True)
class Pending:
    """A step with values still on the device: this rank's loss sums, and the counts they are divided by.

    losses: [number of losses]; counts, tokens and FLOP are those of the global batch of `sequences` samples.
    """

    step: int
    losses: torch.Tensor
    counts: tuple[int, ...]
    grad_norm: torch.Tensor
    tokens: int
    flops: int
    sequences: int
    learning_rate: float
    data_wait_s: float
    start: Any
    before_exchange: Any
    end: Any
    work: Work
    graphs: int | None = None  # number compiled in this step, on devices that compile whole graphs


class Metrics:
    """Collects steps, computes their global values and writes them. Only rank 0 has files."""

    def __init__(
        self, run: RunDir, ranks: Ranks, device: Device, losses: tuple[str, ...],
        peak: float | None, peak_source: str, steps: int, resumed_at: int, say: Callable[[str], None],
        watch: Callable[[int, float, float], None], stragglers: Stragglers,
    ) -> None:  # fmt: skip
        self._ranks, self._device, self._say, self._watch = ranks, device, say, watch
        self._losses = losses
        self._peak, self._peak_source = peak, peak_source
        self._steps = steps
        self.stragglers = stragglers
        self._pending: list[Pending] = []
        self._recent: list[dict[str, Any]] = []
        self._said_at, self._line_seconds = 0.0, line_seconds()
        self._run, self._status = run, TrainerStatus(say)
        self._file: TextIO | None = None
        self._events: Events | None = None
        if ranks.first:
            self._open(resumed_at)

    def _open(self, resumed_at: int) -> None:
        """Open the files, without the steps after `resumed_at`, which will be done again."""
        _drop_after(self._run.metrics, resumed_at)
        _drop_after(self._run.heldout, resumed_at)
        self._file = self._run.metrics.open("a", encoding="utf-8")
        self._events = Events(self._run, resumed_at)

    def rewind(self, step: int) -> None:
        """Forget all steps after `step`, those that were not written yet among them."""
        self._pending = []
        if self._file and self._events:
            self._file.close()
            self._events.close()
            self._open(step)

    def add(self, pending: Pending) -> None:
        self._pending.append(pending)

    def flush(self) -> None:
        """Wait for the pending steps, reduce them over ranks, write them and show them to `watch`.

        Raises:
            LossError: on every rank, if a loss or gradient norm is not finite, or by `watch`.
        """
        if not self._pending:
            return
        rows = [self._row(p) for p in self._pending]
        width = len(self._losses) + 5 * self._ranks.world_size
        flat = self._ranks.sum([value for row in rows for value in row])
        for index, pending in enumerate(self._pending):
            self._write(pending, flat[index * width : (index + 1) * width])
        self._pending = []
        if self._file:
            self._file.flush()

    def _row(self, pending: Pending) -> list[float]:
        """[loss sums, and by rank: seconds before the exchange, gradient norms, whether values were not finite, times].

        The times are those of own work and of waiting for other ranks.
        """
        losses, norm = pending.losses.tolist(), pending.grad_norm.item()
        finite = all(map(math.isfinite, (*losses, norm)))
        seconds, norms, broken, own, waits = ([0.0] * self._ranks.world_size for _ in range(5))
        rank = self._ranks.rank
        seconds[rank] = self._device.seconds(pending.start, pending.before_exchange)
        own[rank], waits[rank] = pending.work.seconds(pending.end)
        norms[rank] = norm if finite else 0.0
        broken[rank] = 0.0 if finite else 1.0 if math.isfinite(norm) else 2.0
        return [*(losses if finite and self._ranks.counts else [0.0] * len(losses)), *seconds, *norms, *broken,
                *own, *waits]  # fmt: skip

    def _write(self, pending: Pending, row: list[float]) -> None:
        world, kinds = self._ranks.world_size, len(self._losses)
        sums = row[:kinds]
        rank_seconds, norms, flags, own, waits = (
            row[kinds + part * world : kinds + (part + 1) * world] for part in range(5)
        )
        if any(flags):
            rank = next(rank for rank in range(world) if flags[rank])
            what = f"the {'gradient norm' if flags[rank] == 2 else 'loss'} of rank {rank}"
            raise LossError(
                "nan",
                pending.step,
                f"{what} is not finite at step {pending.step}; nothing of this step was saved. "
                "Lower train.learning_rate or train.gradient_clip, or check the data of that step",
            )
        grad_norm = max(norms)  # equal on all ranks, unless one of them computes wrongly
        means = [total / count for total, count in zip(sums, pending.counts, strict=True)]
        step_s = self._device.seconds(pending.start, pending.end)
        rate = pending.tokens / step_s
        record = {
            "step": pending.step,
            "loss": sum(means),
            **self._parts(means),
            "lr": pending.learning_rate,
            "grad_norm": grad_norm,
            "tokens": pending.tokens,
            "tokens_per_s": rate,
            "sequences_per_s": pending.sequences / step_s,
            "mfu": pending.flops / step_s / self._peak if self._peak else None,
            "memory_gib": self._device.memory_gib(),
            "data_wait_s": pending.data_wait_s,
            "step_s": step_s,
            "rank_step_s": rank_seconds,
            **({} if pending.graphs is None else {"graphs_compiled": pending.graphs}),
            **self.stragglers.see(pending.step, Times(own, waits, step_s)),
            "time": time.time(),
        }
        self._recent = [*self._recent[-49:], record]
        if self._file and self._events:
            self._file.write(json.dumps(record) + "\n")
            shown = ("lr", "grad_norm", "tokens_per_s", "mfu", "memory_gib", "step_s", *self._parts(means))
            curves = {TRAIN_LOSS: record["loss"], **{f"train/{key}": record[key] for key in shown}}
            self._events.scalars(pending.step, curves)
        self._watch(pending.step, sum(means), grad_norm)
        last = pending.step == self._steps
        if last or time.monotonic() - self._said_at >= self._line_seconds:
            self._said_at = time.monotonic()
            self._say(self._line(record))
            if self._file:
                self._status.send(
                    pending.step, self._steps, self._left(record), {"loss": sum(means), "step": pending.step}
                )

    def _parts(self, means: list[float]) -> dict[str, float]:
        """Each loss under its own name, if there are several."""
        if len(means) == 1:
            return {}
        return {f"{name}_loss": mean for name, mean in zip(self._losses, means, strict=True)}

    def _left(self, record: dict[str, Any]) -> float:
        """Return the seconds that are left, by the median of the last steps."""
        return float((self._steps - record["step"]) * statistics.median(r["step_s"] for r in self._recent))

    def _line(self, record: dict[str, Any]) -> str:
        """One step as a line for a person; speeds are medians of the last steps."""
        rate = statistics.median(r["tokens_per_s"] for r in self._recent)
        left = self._left(record)
        mfu = "MFU unknown"
        if self._peak:
            share = statistics.median(r["mfu"] for r in self._recent)
            busy = ", too low: the machine was busy" if share > 1 else ""
            mfu = f"MFU {share:.1%} of {self._peak / 1e12:.3g} TFLOP/s {self._peak_source}{busy}"
        parts = [f"{name} {record[f'{name}_loss']:.3f}" for name in self._losses if len(self._losses) > 1]
        sequences = statistics.median(r["sequences_per_s"] for r in self._recent)
        speed = f"{rate:,.0f} tokens/s" + (f"  {sequences:,.1f} sequences/s" if parts else "")
        return (
            f"step {record['step']:>{len(str(self._steps))}}/{self._steps}  loss {record['loss']:.3f}  "
            f"{''.join(f'{part}  ' for part in parts)}lr {record['lr']:.2e}  {speed}  {mfu}  "
            f"{record['memory_gib']:.1f} GiB  ETA {int(left) // 60}:{int(left) % 60:02d}"
        )

    def heldout(self, step: int, loss: float) -> None:
        if self._events:
            with self._run.heldout.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "loss": loss, "time": time.time()}) + "\n")
            self._events.scalars(step, {HELDOUT_LOSS: loss})

    def conclude(self, step: int, samples: Iterable[Mapping[str, str]]) -> None:
        """Add what belongs to a complete run: its samples."""
        if self._events:
            self._events.conclude(step, samples)

    def close(self) -> None:
        self._status.close()
        if self._file and self._events:
            self._file.close()
            self._events.close()


def _drop_after(log: Path, step: int) -> None:
    """Drop logged steps after the resumed checkpoint; they will be done again."""
    if not log.exists():
        return
    temporary = log.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as kept:
        kept.writelines(f"{line}\n" for line in _lines(log) if _step_of(line) <= step)
    os.replace(temporary, log)


def _lines(log: Path) -> Iterator[str]:
    """Yield the lines of a log one by one: that of a long run with many ranks has more bytes than fit into memory."""
    with io.BufferedReader(open_regular(log)) as file:
        for line in iter(partial(file.readline, _LONGEST_LINE), b""):
            yield line.decode("utf-8", "replace").rstrip("\n")


def _step_of(line: str) -> float:
    step = _parsed(line).get("step")
    return float(step) if _is_number(step) else math.inf  # the half line of a killed process


def heldout_loss(run: RunDir, step: int) -> float | None:
    """Held-out loss after a step in nats per prediction, None if it was not measured."""
    records, _ = _records(run.heldout, ("step", "loss")) if run.heldout.exists() else ([], 0)
    return next((record["loss"] for record in records if record["step"] == step), None)


def summary(run: RunDir) -> dict[str, float | None]:
    """Median tokens/s and MFU over all logged steps, and the seconds that they took together.

    None without a step. `skipped_lines` counts lines that are not those of a step, if there are any.
    """
    records, skipped = _records(run.metrics, ("tokens_per_s", "step_s"))
    shares = [record["mfu"] for record in records if _is_number(record.get("mfu"))]
    return {
        "tokens_per_s": statistics.median(r["tokens_per_s"] for r in records) if records else None,
        "mfu": statistics.median(shares) if shares else None,
        "seconds": sum(r["step_s"] for r in records) if records else None,
        **({"skipped_lines": skipped} if skipped else {}),
    }


def _records(log: Path, keys: tuple[str, ...]) -> tuple[list[dict[str, Any]], int]:
    """Return `keys`, and `mfu`, of the lines of a log that have numbers under them, and how many lines have not.

    Other processes can write to the run directory, and a killed one leaves half a line.
    """
    good, skipped = [], 0
    for line in _lines(log):
        record = _parsed(line)
        sound = all(_is_number(record.get(key)) for key in keys)
        good += [{key: record.get(key) for key in (*keys, "mfu")}] if sound else []
        skipped += not sound
    return good, skipped


def _parsed(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
