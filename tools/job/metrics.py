"""One reader of training metrics: our metrics.jsonl, our log lines, and the log lines of other trainers.

What a line does not say stays None and is not made up: a trainer that prints samples/s has no tokens/s.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from tools.job.loglines import Line

_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
# Of training/metrics.py: `step  12/100  loss 3.214  lr 2.00e-03  1,234 tokens/s  MFU 1.2% of ...`; a task of
# several losses names each behind their sum, and its sequences/s.
_OURS = re.compile(
    rf"(?:^|\s)step\s+(\d+)/(\d+)\s+loss {_NUMBER}\s+(?:\w+ {_NUMBER}\s+)*?lr {_NUMBER}\s+{_NUMBER} tokens/s"
    rf"(?:\s+{_NUMBER} sequences/s)?(.*)"
)
_OUR_MFU = re.compile(r"MFU ([\d.]+)%")
# awslabs/awsome-distributed-training, FSDP: `Batch 979 Loss: 5.63272, Speed: 0.43 samples/sec, lr: ...`.
_FSDP = re.compile(rf"Batch (\d+) Loss: {_NUMBER}, Speed: {_NUMBER} samples/sec(.*)")
_FSDP_MORE = {
    "tokens_per_s": re.compile(rf"{_NUMBER} tokens/s"),
    "mfu": re.compile(rf"MFU:? {_NUMBER}"),
    "lr": re.compile(rf"lr: {_NUMBER}"),
}
# aws-neuron-samples, BERT: `LOG Wed Dec 21 00:51:01 2022 - (0, 14) step_loss : 10.7 learning_rate : ...`.
_BERT = re.compile(
    r"LOG (\w{3} \w{3} +\d+ [\d:]{8} \d{4}) - \((\d+), (\d+)\) step_loss : "
    rf"{_NUMBER}\s+learning_rate : {_NUMBER}\s+throughput : {_NUMBER}"
)
# transformers.Trainer prints a dict at every logging step, and the step in its progress bar only.
_DICT = re.compile(r"\{'(?:loss|train_runtime)':.*\}")
_BAR = re.compile(r"\b(\d+)/(\d+) \[")
# PyTorch's MNIST example: `Train Epoch: 1 [640/60000 (1%)]	Loss: 2.134`.
_MNIST = re.compile(rf"Train Epoch: (\d+) \[(\d+)/(\d+)[^\]]*\]\s+Loss: {_NUMBER}")


@dataclass(frozen=True)
class Record:
    """One logged step. `time` is in seconds since 1970, None where nothing says it; `mfu` is a share of 1."""

    loss: float | None
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

    def as_dict(self) -> dict[str, Any]:
        """Return what is known, for JSON: a number that is not finite becomes its name."""
        found = {key: value for key, value in asdict(self).items() if value not in (None, ())}
        return {key: _plain(value) for key, value in found.items()}


COLUMNS = tuple(one.name for one in fields(Record) if one.name != "rank_step_s")


def from_jsonl(lines: Iterable[str]) -> list[Record]:
    """Return the records of a metrics.jsonl; the half line of a killed process is left out."""
    return [record for record in map(_from_json, lines) if record is not None]


def from_log(lines: Iterable[Line]) -> list[Record]:
    """Return the records in a log of any known trainer, in the log's order."""
    found: list[Record] = []
    bar: tuple[int, int] | None = None
    for line in lines:
        at = line.time.timestamp() if line.time else None
        seen = _BAR.findall(line.text)
        bar = (int(seen[-1][0]), int(seen[-1][1])) if seen else bar
        record = _from_line(line.text, at, bar)
        if record is not None:
            found.append(record)
    return found


def progress(records: list[Record]) -> Record | None:
    """Return the newest record that has a step, None where none has."""
    return next((record for record in reversed(records) if record.step is not None), None)


@dataclass(frozen=True)
class Gap:
    """A restart in a run: training had come to `before`, went on at `after`, `seconds` later."""

    before: int
    after: int
    seconds: float | None


def gaps(records: list[Record]) -> list[Gap]:
    """Return where a run was interrupted: steps that went back, or a pause far longer than its steps take."""
    steps = [record for record in records if record.step is not None]
    pauses = [
        later.time - earlier.time
        for earlier, later in itertools.pairwise(steps)
        if earlier.time is not None and later.time is not None
    ]
    usual = statistics.median(pauses) if pauses else 0.0
    found = []
    for earlier, later in itertools.pairwise(steps):
        assert earlier.step is not None
        assert later.step is not None
        pause = later.time - earlier.time if earlier.time is not None and later.time is not None else None
        back = later.step <= earlier.step
        if back or (pause is not None and pause > max(10.0, 10 * usual)):
            found.append(Gap(earlier.step, later.step, pause))
    return found


@dataclass(frozen=True)
class Eta:
    """Seconds that are left: between `low` and `high`, from the quartiles of the latest steps."""

    low: float
    high: float


def eta(records: list[Record], steps: int | None = None, recent: int = 50) -> Eta | None:
    """Return how long the rest takes, None where the records do not say it.

    The lower and the upper quartile of the seconds per step among the latest `recent` steps, times the steps
    that are left. `steps` is the run's length where the records do not have it.
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
    return Eta(left * max(0.0, low), left * high)


def _paces(records: list[Record]) -> list[float]:
    """Return the seconds that each step took, by the clock where there is one: it counts pauses too."""
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


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(line: str) -> Record | None:
    try:
        value = json.loads(line)
        known = {one.name for one in fields(Record)}
        picked = {key: item for key, item in value.items() if key in known}
        picked["step"] = int(value["step"])
        picked["rank_step_s"] = tuple(value.get("rank_step_s") or ())
        picked["samples_per_s"] = value.get("sequences_per_s", value.get("samples_per_s"))
        return Record(**{"loss": None} | picked)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _from_line(text: str, at: float | None, bar: tuple[int, int] | None) -> Record | None:
    if found := _OURS.search(text):
        mfu = _OUR_MFU.search(found[8])
        return Record(
            step=int(found[1]), steps=int(found[2]), loss=_number(found[3]), lr=_number(found[5]),
            tokens_per_s=_number(found[6]), samples_per_s=_number(found[7]) if found[7] else None,
            mfu=float(mfu[1]) / 100 if mfu else None, time=at,
        )  # fmt: skip
    if found := _FSDP.search(text):
        more = {key: match[1] for key, sign in _FSDP_MORE.items() if (match := sign.search(found[4]))}
        return Record(
            step=int(found[1]), loss=_number(found[2]), samples_per_s=_number(found[3]),
            time=at or _written(text, "%Y-%m-%d %H:%M:%S"),
            **{key: _number(value) for key, value in more.items()},  # type: ignore[arg-type]
        )  # fmt: skip
    if found := _BERT.search(text):
        return Record(
            epoch=float(found[2]), step=int(found[3]), loss=_number(found[4]), lr=_number(found[5]),
            samples_per_s=_number(found[6]), time=at or _written(found[1], "%a %b %d %H:%M:%S %Y"),
        )  # fmt: skip
    if found := _DICT.search(text):
        return _from_dict(found[0], at, bar)
    if found := _MNIST.search(text):
        share = int(found[2]) / max(1, int(found[3]))
        return Record(epoch=int(found[1]) - 1 + share, loss=_number(found[4]), time=at)
    return None


def _from_dict(text: str, at: float | None, bar: tuple[int, int] | None) -> Record | None:
    """Read what transformers.Trainer prints; its release 5 prints the numbers as texts."""
    try:
        value = ast.literal_eval(text.replace(": nan", ": 'nan'").replace(": inf", ": 'inf'"))
    except (ValueError, SyntaxError):
        return None
    if not isinstance(value, dict) or "loss" not in value:
        return None
    picked = {
        "loss": value["loss"],
        "grad_norm": value.get("grad_norm"),
        "lr": value.get("learning_rate"),
        "epoch": value.get("epoch"),
    }
    step, steps = bar or (None, None)
    numbers = {key: _number(str(item)) for key, item in picked.items() if item is not None}
    return Record(**{"loss": None} | numbers, step=step, steps=steps, time=at)  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _written(text: str, form: str) -> float | None:
    """Return the time that stands in the line itself, taken as UTC, as pods write it."""
    words = text if form.startswith("%a") else text.lstrip()[:19]
    try:
        return datetime.strptime(words, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def median(records: list[Record], key: str, recent: int = 50) -> float | None:
    """Return the median of a value over the latest records that have it, None where none has."""
    values = [value for record in records if (value := getattr(record, key)) is not None]
    return statistics.median(values[-recent:]) if values else None


def curve(records: list[Record], key: str) -> Iterator[tuple[float, float]]:
    """Yield (step, value) of the records that have both and whose value is finite."""
    for record in records:
        value = getattr(record, key)
        if record.step is not None and value is not None and math.isfinite(value):
            yield float(record.step), float(value)
