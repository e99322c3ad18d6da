"""Reads a trainer's log: what one line says about a step, and one record for each step.

Most trainers print a step and then names with numbers, so tables of names and one reader are enough for:
trainyard, FSDP of awsome-distributed-training (`Batch 979 Loss: 5.6, Speed: 0.43 samples/sec, lr: ...`),
torchtitan, Megatron-LM, GPT-NeoX, the progress bars of NeMo and Lightning, DeepSpeed, nanoGPT. These have a
format of their own: aws-neuron-samples (epoch and step in brackets), transformers.Trainer (a dict, and the
step in the progress bar only), PyTorch's MNIST example, and loggers that write JSON. Each format is taken
from the trainer's source or from a published log.

A line that does not contain a step gives no step. Evaluations are not steps. A record has the values `step`,
`steps` (of the whole run), `time` (seconds since 1970), `loss`, `lr`, `grad_norm`, `tokens_per_s`,
`samples_per_s`, `mfu` (between 0 and 1), `step_s`, `data_wait_s`, `rank_step_s`, `memory_gib`, `epoch`, `stragglers`.

The tools read pods' logs with it. The agent reads the output of a script with it, with Python 3.8 or newer.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Dict

from training.run import straggling
from training.run.timestamps import moment

LONGEST = 4096  # characters of a line that are searched; a line of JSON is read whole
LATEST = 253_402_300_800  # seconds since 1970: the year 10000, which no date can hold
RESTART = 10.0  # seconds; two ranks write about the same step within this time
Values = Dict[str, Any]


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Before Python 3.11 nothing is possessive, and a run of blanks has a bound instead.

    The other possessive repetitions cannot match what follows them, so they mean the same without.
    """
    if sys.version_info < (3, 11):
        pattern = pattern.replace(r"\s*+", r"\s{0,9}").replace(r"\s++", r"\s{1,9}")
        pattern = pattern.replace("*+", "*").replace("++", "+")
    return re.compile(pattern)


# Not a number that ends after its point, as in the last line of a killed process.
_NUMBER = r"([-+]?(?:\d{1,3}(?:,\d{3}){1,6}(?:\.\d+)?|\d+(?:\.\d+)?(?:e[-+]?\d+)?|\.\d+"
_NUMBER += r"|(?:nan|inf(?:inity)?)(?:\.0*)?\b))(?!\d|\.(?:\d|$))"
NOT_FINITE = _compile(r"(?i)([-+]?(?:nan|inf(?:inity)?))(?:\.0*)?")  # Lightning's progress bar has `nan.0`
_IS = r"\s*+[:=]?\s*+[\[(]?\s*+"  # between a name and its number
_OWN = r"(?<![\w.-])"  # not the end of another name: `loss` is not `load_balancing_loss`


@dataclass(frozen=True)
class _Sign:
    """A way to write a value. The pattern is only tried on a (lower case) line that contains `hint`."""

    hint: str
    pattern: re.Pattern[str]

    def search(self, line: str) -> re.Match[str] | None:
        return self.pattern.search(line) if self.hint in line else None


def _named(hint: str, *names: str, unit: str = "") -> _Sign:
    return _Sign(hint, _compile(f"{_OWN}(?:{'|'.join(names or [hint])}){_IS}(?:tensor\\()?{_NUMBER}{unit}"))


def _rate(hint: str, things: str) -> tuple[_Sign, _Sign]:
    """Return the two ways to write a rate: `tokens/s: 12` and `12 tokens/s`, but not `tokens/s/GPU`."""
    second = r"(?:/s(?:ec(?:ond)?)?|[ _]?per[ _]?sec(?:ond)?)"
    named = rf"(?<![\w.-])(?:curr)?(?:{things}){second}\s*+[:=]\s*+{_NUMBER}"
    behind = rf"(?<![\w.]){_NUMBER}\s*+(?:{things}){second}(?![\w/]|\s*+[:=])"
    return _Sign(hint, _compile(named)), _Sign(hint, _compile(behind))


# The first name that occurs in the line counts: Lightning's `loss` is smoothed, its `reduced_train_loss` is
# the step's.
_LOSS = (
    _named("reduced_train_loss"),
    _named("loss", "train(?:ing)?[_ ]loss", "lm[_ ]loss", "step_loss", "loss"),
)
_STEP = tuple(
    _Sign(hint, _compile(rf"{_OWN}{name}\s*+[:=#]?\s*+\[?\s*+(\d+)(?:\.0+)?(?![\d.]|,\d)(?:\s*+/\s*+(\d+))?"))
    for hint, name in (
        ("global", "global[_ ]step"),
        ("step", "step"),
        ("iter", "iter(?:ation)?"),
        ("batch", "batch"),
    )
)
_EPOCH = _Sign("epoch", _compile(rf"{_OWN}epoch{_IS}(\d+(?:\.\d+)?)"))
_MORE: dict[str, tuple[_Sign, ...]] = {
    "lr": (_named("learning", "learning[_ ]rate"), _named("lr")),
    "grad_norm": (_named("norm", "grad(?:ient)?[_ -]?norm", "gnorm", "norm"),),
    "tokens_per_s": (*_rate("tok", "tokens?|tok"), _named("tps")),  # torchtitan's is of one device
    "samples_per_s": (
        *_rate("sample", "samples?"), *_rate("seq", "seqs?|sequences?"), *_rate("e", "examples?|images?")
    ),
    "step_s": (_named("train_step_timing in s"),),
    "memory_gib": (_Sign("gib", _compile(rf"(?<![\w.]){_NUMBER}\s*+gib")),),
}  # fmt: skip
_MILLISECONDS = (
    _named("per iteration", r"elapsed time per iteration \(ms\)"),
    _named("ms", "time", "dt", unit=r"\s*+ms\b"),
)
_MFU = _Sign("mfu", _compile(rf"{_OWN}mfu{_IS}{_NUMBER}\s*+(%?)"))
_THROUGHPUT = _named("throughput")  # Neuron's has no unit: it is sequences per second
_NEURON = _compile(r"step_loss|consumed_samples")
_NO_TRAINING = _compile(r"\b(?:eval\w*|valid\w*|val|test|dev)\b|[a-z](?:error|exception)\b")
_DEEPSPEED = _compile(r"\bstep=\d+, skipped=|samplespersec=")
_NEURON_LINE = _compile(r"LOG (\w{3} \w{3} +\d+ [\d:]{8} \d{4}) - \((\d+), (\d+)\) (step_loss : .*)")
_DICT = _compile(r"\{(?=[^{}]*'loss':)'[^{}]*+\}")
_CALL = _compile(r"\b(?:np\.|numpy\.|torch\.)?(?:tensor|float\d*|int\d*)\(\s*+([^(),]++)[^()]*+\)")
_NO_NUMBER = _compile(r"(?<=: )-?(?:nan|inf)\b")
# PyTorch's example, and Kubeflow's, which prints `loss=`.
_MNIST = _compile(rf"train epoch: (\d+) \[\s*+(\d+)/(\d++)[^\[\]]*+\]\s++loss{_IS}{_NUMBER}")
_BAR = _compile(r"(?<!\d)\d++%\|[^|]*+\|\s*+(\d+)/(\d+) \[(?:[\d:]++<[\d:?]++,\s*+(\d++\.\d++)(s/it|it/s))?")
_TOTAL = _compile(r"Total optimization steps = ([\d,]+)")
# Lines without any of these are skipped.
MAYBE = _compile(r"[Ll]oss|LOSS|[Ss]tep|STEP|[Ii]ter|\d/\d+ \[")
_TIMES = (
    (_compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?"), "%Y-%m-%d"),
    (_compile(r"(\d\d/\d\d/\d{4}) (\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?"), "%m/%d/%Y"),
)
# Prefixes of a line: kubectl --prefix, kubetail and stern, ours, srun --label, torchrun --tee, torch.
_PREFIX = _compile(
    r"\s*(?:(\[pod/[^\]]+\]|\[[a-z0-9][a-z0-9.-]*\]|(?:worker|master)-\d+ \||\[(?:rank|default)?\d+\]:"
    r"|\d+:(?= )) ?"
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z )"
)
# Names in loggers that write JSON. An evaluation's loss has another name.
_ALIASES = {
    "step": ("step", "global_step", "iteration", "iter", "train/global_step", "_step"),
    "steps": ("steps", "total_steps", "max_steps"),
    "loss": ("loss", "train_loss", "train/loss", "training_loss", "reduced_train_loss", "lm_loss", "lm loss"),
    "lr": ("lr", "learning_rate", "train/learning_rate"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm"),
    "tokens_per_s": ("tokens_per_s", "tokens_per_second", "tokens_per_sec"),
    "samples_per_s": ("sequences_per_s", "samples_per_s", "samples_per_second", "samples_per_sec"),
    "epoch": ("epoch", "train/epoch"),
    "mfu": ("mfu",),
    "step_s": ("step_s",),
    "data_wait_s": ("data_wait_s",),
    "memory_gib": ("memory_gib",),
}
_MEASURED = {"loss", "tokens_per_s", "samples_per_s", "step_s", "lr"}
_LARGEST_STEP = 2**53  # every whole number up to it is a float
_TEXTS = ("message", "msg", "log", "text", "event")
_MOMENTS = ("time", "timestamp", "_timestamp", "ts", "asctime", "@timestamp")


@dataclass(frozen=True)
class ParsedLine:
    """The values of a line, its writer (pod and rank, if it names them), and a progress bar's position."""

    values: Values | None
    writer: str
    bar: tuple[int, int] | None = None
    pace: float | None = None  # seconds of a step, by the bar
    total: int | None = None  # steps of the run, which transformers.Trainer prints before the first one


def read(text: str) -> ParsedLine | None:
    """Return what a line says about a step, None if nothing."""
    if not MAYBE.search(text):
        return None
    writer, rest = _without_prefix(text)
    total = _TOTAL.search(rest)
    bar = _BAR.match(rest.lstrip())
    values = _values(rest)
    if values is not None and "time" not in values and (at := _time(text)) is not None:
        values["time"] = at
    if values is None and bar is None and total is None:
        return None
    place = (int(bar[1]), int(bar[2])) if bar else None
    rate = float(bar[3] or 0) if bar else 0.0
    pace = (rate if bar and bar[4] == "s/it" else 1 / rate) if rate else None
    return ParsedLine(values, writer, place, pace, int(total[1].replace(",", "")) if total else None)


def from_json(text: str) -> Values | None:
    """Return what a line of JSON says about a step, None for any other line."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _from_object(value) if isinstance(value, dict) else None


def number(value: Any) -> float | None:
    """Return a number or the number in a text; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str) and (named := NOT_FINITE.fullmatch(value)):
        return float(named[1])
    try:
        return float(value.replace(",", "") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def _without_prefix(text: str) -> tuple[str, str]:
    """Return the writer that a line's prefixes name, and the rest of the line."""
    names, end = [], 0
    while found := _PREFIX.match(text, end):
        names.append(found[1] or "")
        end = found.end()
    return "".join(names), text[end:]


def _values(text: str) -> Values | None:
    if text.lstrip().startswith("{"):
        known = from_json(text)
        if known is not None:
            return known
    text = text[:LONGEST]
    if found := _DICT.search(text):
        return _from_dict(found[0])
    if found := _NEURON_LINE.search(text):
        at = _asctime(found[1])
        time = {"time": at} if at is not None else {}
        return {"epoch": float(found[2]), "step": int(found[3]), **_pairs(found[4]), **time}
    low = text.lower()
    if found := _MNIST.search(low):
        share = int(found[2]) / max(1, int(found[3]))
        return {"epoch": int(found[1]) - 1 + share, "loss": number(found[4])}
    return _from_words(low)


def _from_words(low: str) -> Values | None:
    """Read names with numbers. A step has a loss, or is DeepSpeed's line with a speed."""
    if _NO_TRAINING.search(low):
        return None
    if not any(sign.search(low) for sign in _LOSS) and not _DEEPSPEED.search(low):
        return None
    found = next((match for sign in _STEP if (match := sign.search(low))), None)
    place = found or _BAR.search(low)
    if place is None:
        return None
    epoch = _EPOCH.search(low)
    values: Values = {"step": int(place[1])}
    if epoch:
        values["epoch"] = float(epoch[1])
    elif found and found[2]:  # with an epoch it is the epoch's length
        values["steps"] = int(found[2])
    return {**values, **_pairs(low)}


def _pairs(low: str) -> Values:
    """Return the numbers after known names or before known units."""
    values: Values = {}
    for key, signs in {"loss": _LOSS, **_MORE}.items():
        if match := next((match for sign in signs if (match := sign.search(low))), None):
            values[key] = number(match[1])
    if match := next((match for sign in _MILLISECONDS if (match := sign.search(low))), None):
        values["step_s"] = (number(match[1]) or 0.0) / 1000
    if mfu := _MFU.search(low):
        share = number(mfu[1]) or 0.0
        values["mfu"] = share / 100 if mfu[2] or share > 1 else share
    if "samples_per_s" not in values and _NEURON.search(low) and (rate := _THROUGHPUT.search(low)):
        values["samples_per_s"] = number(rate[1])
    return values


def _from_dict(text: str) -> Values | None:
    """Read a dict of transformers.Trainer. Its release 5 prints numbers as texts, others as numpy scalars."""
    plain = _NO_NUMBER.sub(lambda match: f"'{match[0]}'", _CALL.sub(r"\1", text))
    try:
        value = ast.literal_eval(plain)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return _from_object(value) if isinstance(value, dict) else None


def _from_object(value: Mapping[Any, Any]) -> Values | None:
    """Return a step's values by their names, or the values in the message of a logger's object."""
    found: Values = {}
    for key, names in _ALIASES.items():
        known = (number(value.get(name)) for name in names)
        item = next((item for item in known if item is not None), None)
        if item is not None:
            found[key] = item
    ranks = value.get("rank_step_s")
    if isinstance(ranks, list):
        found["rank_step_s"] = tuple(one for one in map(number, ranks) if one is not None)
    if slow := straggling.read(value.get("stragglers")):
        found["stragglers"] = slow
    at = next((at for name in _MOMENTS if (at := _moment(value.get(name))) is not None), None)
    if not _MEASURED & set(found):
        text = next((str(value[name]) for name in _TEXTS if isinstance(value.get(name), str)), "")
        inner = read(text) if text else None
        if inner is None or inner.values is None:
            return None
        return {**inner.values, **({} if at is None else {"time": at})}
    for key in ("step", "steps"):
        if key in found:
            if not abs(found[key]) <= _LARGEST_STEP:
                return None
            found[key] = int(found[key])
    if not math.isfinite(found.get("epoch", 0.0)):
        del found["epoch"]
    return {**found, **({} if at is None else {"time": at})}


def _moment(value: Any) -> float | None:
    """Return seconds since 1970 from a logger's seconds, milliseconds or text."""
    seconds = number(value)
    if seconds is not None:
        seconds = seconds / 1000 if seconds > 1e11 else seconds
        return seconds if 0 <= seconds < LATEST else None
    if not isinstance(value, str):
        return None
    found = moment(value.replace(",", "."))
    return found.timestamp() if found else None


def _time(text: str) -> float | None:
    """Return the time in the line itself, read as UTC: pods run in UTC."""
    for sign, form in _TIMES:
        if found := sign.search(text):
            try:
                at = datetime.strptime(f"{found[1]} {found[2]}", f"{form} %H:%M:%S").replace(tzinfo=timezone.utc)
            except ValueError:
                continue
            return _utc(at) + (float(f"0.{found[3]}") if found[3] else 0.0)
    return None


def _asctime(text: str) -> float | None:
    try:
        return _utc(datetime.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


def _utc(at: datetime) -> float:
    return at.replace(tzinfo=timezone.utc).timestamp()


class Steps:
    """Joins what the lines of a log say about a step: one record for each step, in the log's order.

    Lines of several ranks about one step become one record, and so do several lines of one rank.
    """

    def __init__(self) -> None:
        self._bars = _Bars()
        self._last: Values = {}
        self._owner = ""

    def take(self, text: str, time: float | None = None, pod: str = "") -> Values | None:
        """Read the next line; return the record that it ends, if it begins another one."""
        parsed = read(text)
        if parsed is None:
            return None
        step = self._bars.step(parsed)
        if parsed.values is None:
            return None
        values = {**step, **parsed.values, **({} if time is None else {"time": time})}
        values = {key: value for key, value in values.items() if value is not None}
        writer = pod + parsed.writer
        if self._last and _same_step(self._last, values, writer == self._owner):
            self._last = _together(self._last, values, writer == self._owner)
            return None
        ended, self._last, self._owner = self._last, values, writer
        return ended or None

    @property
    def last(self) -> Values:
        """The newest record, which later lines may still complete; empty without one."""
        return self._last


class _Bars:
    """Reads the step of transformers.Trainer from its progress bar, because its dicts do not contain it.

    The bars of datasets and shards start with a name. The bar of an evaluation has another length. A bar that
    has not moved since the last dict does not belong to this dict.
    """

    def __init__(self) -> None:
        self._now: tuple[int, int] | None = None
        self._used: tuple[int, int] | None = None
        self._total: int | None = None
        self._pace: float | None = None

    def step(self, parsed: ParsedLine) -> Values:
        """Return the step of a line that has values but no step, and its seconds; empty if no bar shows it."""
        self._total = parsed.total or self._total
        if parsed.bar and (self._total is None or parsed.bar[1] == self._total):
            self._now, self._pace = parsed.bar, parsed.pace
        if parsed.values is None or self._now is None:
            return {}
        if "step" in parsed.values:
            if abs(parsed.values["step"] - self._now[0]) <= 1:  # DeepSpeed's own line is ahead of the bar
                self._now = (parsed.values["step"], self._now[1])
            return {}
        if self._now == self._used:
            return {}
        self._used, self._total = self._now, self._now[1]
        return {"step": self._now[0], "steps": self._now[1], "step_s": self._pace}


def _same_step(last: Values, values: Values, same_writer: bool) -> bool:
    """Return whether values are about the last record's step, or another rank's about an earlier step."""
    if "step" not in values or "step" not in last:
        return "epoch" in values and {**values, "time": None} == {**last, "time": None}
    if "time" in last and "time" in values and abs(values["time"] - last["time"]) > RESTART:
        return False
    if "epoch" in last and "epoch" in values and last["epoch"] != values["epoch"]:
        return False
    return bool(values["step"] == last["step"] or (not same_writer and values["step"] < last["step"]))


def _together(last: Values, values: Values, same_writer: bool) -> Values:
    """Merge two records of a step: a rank's later line replaces its own values and adds to another rank's."""
    if values.get("step") != last.get("step"):
        return last
    return {**last, **values} if same_writer else {**values, **last}
