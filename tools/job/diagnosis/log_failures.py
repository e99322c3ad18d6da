"""The lines of a log that report a failure, and how much each proves.

Reports are: an exception at the end of its traceback, with the lines of its message; a line of level ERROR or
above; a message of the runtime below Python; and torchrun's message about a child that a signal ended. Words
in INFO lines and warnings are not reports: `config file not found, using defaults` is not why a job failed.
Reports that training survived are left out: steps after a report show that it was handled.
"""

import enum
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tools.job.diagnosis import log_patterns, log_survival, signs
from tools.job.diagnosis.log_patterns import form
from tools.job.diagnosis.log_survival import Survival
from tools.job.diagnosis.log_tracebacks import Traceback
from tools.job.metrics import series
from tools.job.metrics.series import Record
from tools.job.snapshot.log_lines import Line, cut
from training.run import trainer_logs

WRAPPED = 60  # characters: the package rich also wraps the message below its box
MESSAGE = 6  # further lines of an exception's message
ANSWER = 3  # lines of the hub's answer
FRAMES = 60  # of a traceback; the newest ones are kept


class Weight(enum.IntEnum):
    """How much a report proves about the end of a process; lower values prove more."""

    UNCAUGHT = 0  # an exception that ended a rank: torch puts the rank's number before it
    RAISED = 1  # an exception, which may have been caught
    LOGGED = 2  # a line of level ERROR, or a message of the runtime
    HINT = 3  # a library's warning that healthy jobs write too
    CHILD = 4  # torchrun's message about the signal that ended a child
    END = 5  # a program's message that something before it failed
    CUT = 6  # a traceback whose last line is not in the log: it shows where, not why


@dataclass(frozen=True)
class Report:
    """One report: its first line, its whole text on one line, and for CHILD the signal's number.

    `place` is where an exception was raised, `/a.py:12, in f | f(x)`: the last frame of its traceback that is
    not in Python's standard library. `stack` has all frames of that traceback and of those it comes from.
    `inner` marks an exception that another one follows from. `exception` marks what ended a process unless it
    was caught, in whatever language. `index` is the line's place among those that were read.
    """

    line: Line
    text: str
    weight: Weight
    exception: bool = False
    signal: int = 0
    place: str = ""
    stack: str = ""
    inner: bool = False
    index: int = 0


INSIDE = ("frame", "cell_frame", "box_frame", "box_code")  # lines at which a log may begin within a traceback
LONGEST, MIXED = 100, 16  # characters of another collector's prefix; lines in which it comes again
_CHAINED = ("During handling of the above", "The above exception was the direct")

# The keys of JSON logs: structlog, Python's logging, zap, pino, ECS and others.
_LEVELS = ("level", "levelname", "severity", "lvl", "log.level", "severity_text", "severityText")
_SEVERE = ("ERROR", "FATAL", "CRITICAL", "ERR", "PANIC", "ALERT", "EMERGENCY", "50", "60")
_MESSAGES = ("message", "msg", "event", "error")
_TRACEBACKS = ("exc_info", "exception", "stack_trace", "traceback", "exception.stacktrace")
_COLLECTED = ("log", "textPayload")  # of collectors: a level beside them is that of the stream, or a guess
_ENVELOPES = (*_COLLECTED, "message", "@message", "msg", "line", "text", "body", "_raw")
_NESTED = ("content", "jsonPayload", "_source", "result", "attributes", "error", "log")  # objects with such keys


@dataclass(frozen=True)
class Reading:
    """What a log says, or several merged by time. Each part is read once, when it is first asked for."""

    lines: list[Line]

    @cached_property
    def plain(self) -> list[Line]:
        """The lines as programs wrote them, without what collectors have put around them."""
        return _unmarked([one for line in self.lines for one in _unfolded(line)])

    @cached_property
    def records(self) -> list[Record]:
        """The steps of training."""
        return series.from_log(self.lines)

    @cached_property
    def _survival(self) -> Survival:
        return log_survival.of(self.plain)

    @cached_property
    def reports(self) -> list[Report]:
        """The reports of failures, without those that were survived."""
        found = _reports(self.plain, self._survival.first)
        return [one for one in found if not self._survival.covers(one.line, one.index)]

    def survived(self) -> list[Report]:
        """Return the exceptions and errors that training survived."""
        reports = _reports(self.plain) if self._survival.last else ()
        return [one for one in reports if one.weight <= Weight.LOGGED and self._survival.covers(one.line, one.index)]

    def unexplained(self) -> tuple[Line | None, Line | None, Line | None]:
        """Return where a traceback is cut, the first line that says that a child ended itself, and the last warning.

        Steps after them count.
        """
        rest = self.plain[self._survival.by_all :]
        left = next((line for line in rest if form("left").search(line.text)), None)
        cut = next((one.line for one in self.reports if one.weight is Weight.CUT), None)
        return cut, left, next((line for line in reversed(rest) if form("warned").search(bare(line))), None)


def _unmarked(lines: list[Line]) -> list[Line]:
    """Return lines without what stands before each of them, unless that names a rank."""
    texts = [line.text for line in lines if line.text.strip()]
    ends = (min(texts), max(texts)) if len(texts) > 2 else ("", "")  # what these share, all texts share
    same = "".join(itertools.takewhile(bool, (a * (a == b) for a, b in zip(*ends, strict=False))))
    shared = form("mark").match(same)
    if shared is None or any(line.rank is not None for line in lines[:1]):
        return lines
    return [replace(line, text=line.text.removeprefix(shared[0])) for line in lines]


def bare(line: Line) -> str:
    """Return the text of a line without what collectors and launchers put before this one."""
    return form("prefix").sub("", form("collected").sub("", line.text))


def _reports(lines: list[Line], start: int = 0) -> Iterator[Report]:
    """Yield the reports from the line with index `start` on."""
    open_tracebacks: dict[tuple[str, str], Traceback] = {}  # by pod and prefix
    earlier: dict[tuple[str, str], list[str]] = {}  # frames of the exception that the next one comes from
    read = start  # lines before this one belong to a message
    prefixes = _collectors(lines)
    for index, line in enumerate(lines):
        if index < read:
            continue
        prefix = _prefix(line.text, prefixes)
        body = form("branch").sub("", line.text[len(prefix) :])
        writer = (line.pod, prefix.rstrip())
        if form("begin").search(body):
            ignored = index > 0 and form("ignored").search(lines[index - 1].text[len(prefix) :]) is not None
            open_tracebacks[writer] = Traceback(frames=earlier.pop(writer, []), ignored=ignored)
            continue
        traceback = open_tracebacks.get(writer)
        if traceback is None and any(form(name).match(body) for name in INSIDE):
            traceback = open_tracebacks[writer] = Traceback()
        if traceback and traceback.add(body):
            if body.strip():
                traceback.last, traceback.index = line, index
            continue
        raised = open_tracebacks.pop(writer, Traceback())
        weight = _weight(prefix, body, traceback is not None and form("raised").match(body.lstrip()) is not None)
        if weight is None or raised.ignored:
            continue
        exception = weight <= Weight.RAISED
        following = lines[index + 1 : index + 1 + MESSAGE] if exception or body.rstrip().endswith(":") else []
        message = list(_message(body, following, prefix, raised.boxed, exception))
        if raised.launchers and form("relayed").match(body):
            weight, exception = Weight.END, False
        read = index + 1 + len(message)
        inner = any(line.text[len(prefix) :].startswith(_CHAINED) for line in lines[read : read + 3])
        if inner:
            earlier[writer] = raised.frames
        child = form("child").search(body) if weight is Weight.CHILD else None
        signal = abs(int(child[child.lastindex or 0])) % 128 if child else 0
        yield Report(
            line, " ".join([body.strip() if exception else body.rstrip(), *message]), weight, exception, signal,
            raised.place if exception else "", "\n".join(raised.frames[-FRAMES:]), inner, index,
        )  # fmt: skip
    yield from filter(None, map(_unfinished, open_tracebacks.values()))


def _unfinished(traceback: Traceback) -> Report | None:
    """Return the report of a traceback whose last line is not in the log."""
    if not traceback.place or traceback.last is None or traceback.ignored or traceback.launchers:
        return None
    weight = Weight.RAISED if traceback.raises else Weight.CUT
    stack = "\n".join(traceback.frames[-FRAMES:])
    return Report(
        traceback.last, traceback.raises, weight, True, place=traceback.place, stack=stack, index=traceback.index
    )  # fmt: skip


def _collectors(lines: list[Line]) -> set[str]:
    """Return the prefixes that a log collector puts before a traceback's first line and before one soon after."""
    found = set()
    for index, line in enumerate(lines):
        match = form("begin").search(line.text)
        before = line.text[: match.start()] if match else ""
        own = before[len(_prefix(before, set())) :].strip("|")
        if not own or len(before) > LONGEST or form("branch").fullmatch(own):
            continue
        if any(one.text.startswith(before) for one in lines[index + 1 : index + 1 + MIXED]):
            found.add(before)
    return found


def _prefix(text: str, collectors: set[str]) -> str:
    """Return the prefix of a line."""
    known = form("prefix").match(text)
    first = known[0] if known else ""
    return max((one for one in collectors if text.startswith(one)), key=len, default=first)


def _weight(prefix: str, body: str, raised: bool) -> Weight | None:
    """Return how much a line proves, None if it reports nothing."""
    said = raised or form("exception").match(body.removeprefix(" ")) is not None
    whole = prefix + body
    if not (said or form("letter").search(whole) or log_patterns.may_report(whole.casefold())):
        return None
    if form("asked").search(body):
        return Weight.LOGGED
    if form("child").search(body):
        return Weight.CHILD
    if any(form(name).search(body) for name in ("agent", "banner", "left")):
        return None
    if said:
        return Weight.UNCAUGHT if form("torch_rank").search(prefix) else Weight.RAISED
    if log_patterns.lines("hints").search(body):
        return Weight.HINT
    if form("python_warns").search(body) or form("warned").search(body) or form("ignored").search(body):
        return None
    if form("native").search(body):
        return Weight.RAISED
    if (
        signs.event(body)
        or log_patterns.lines("runtime").search(body)
        or (any(map(form("level").search, (prefix, body))) and not form("mild").search(body))
    ):
        return Weight.LOGGED
    ended = log_patterns.lines("ends").search(body) and not form("mild").search(whole)
    return Weight.END if ended else None


def _message(first: str, following: list[Line], prefix: str, boxed: bool, exception: bool) -> Iterator[str]:
    """Yield the further lines of an exception's message: those that torch marks with its rank, and NCCL's.

    Another line follows one that ends with a colon. Below a box, rich has wrapped the message. The hub's answer is
    behind the ID of the request.
    """
    answer = exception and "(Request ID: " in first
    marked = exception and form("torch_rank").search(prefix)
    body = first
    for line in following[: ANSWER if answer else None]:
        last = body.rstrip().endswith(":") or body.startswith("Last error:") or (boxed and len(body) > WRAPPED)
        body = line.text.removeprefix(prefix)
        new = (
            form("begin").search(body)
            or form("mild").search(body)
            or body.startswith(("[", "During handling", "The above exception", "Exception raised from", "frame #"))
        )
        own = (
            line.text.startswith(prefix) if marked else last or answer or (exception and form("continued").match(body))
        )
        if new or not own:
            return
        yield body.strip()


def _unfolded(line: Line) -> Iterator[Line]:
    """Yield a line as it is, or the message of a line of JSON if its level is ERROR or above.

    A rank's traceback may begin in the middle of a line that another program has not ended.
    """
    own = form("collected").sub("", line.text)
    inside = form("prefix").sub("", own)
    if not inside.startswith("{"):
        behind, told = form("behind").search(own), form("error_file").match(inside)
        text = own[behind.start(1) :] if behind else told[1] if told else own
        parts = text.split("\\n") if '\\n  File "' in text else [text]  # an exception in quotes
        yield from (line if part == line.text else replace(line, text=part) for part in parts)
        return
    try:
        value = json.loads(inside)
    except (ValueError, RecursionError):
        value = {}
    inner = (value[name] for name in _NESTED if isinstance(value.get(name), dict))
    value = {key: one for part in (*inner, value) for key, one in part.items() if not isinstance(one, dict)}
    level = next((str(value[key]).upper() for key in _LEVELS if key in value), None)
    wrapped = next((value[key] for key in _ENVELOPES if isinstance(value.get(key), str)), "")
    if wrapped and (level is None or not value.keys().isdisjoint(_COLLECTED)):
        for words in wrapped.splitlines():
            yield from _unfolded(replace(line, text=words if words.startswith("{") else cut(words)))
    elif level is None:
        yield replace(line, text=cut(own))
    elif level not in _SEVERE:  # of these lines only steps count: they show what was survived
        yield from [replace(line, text=cut(own))] if trainer_logs.from_json(inside) else []
    else:
        found = [str(value[key]).partition("Traceback (most recent") for key in _MESSAGES if value.get(key)]
        texts = [f"ERROR {words}" for message, *_ in found for words in message.splitlines()]
        texts += [words for _, mark, rest in found for words in f"{mark}{rest}".splitlines()]
        texts += [words for key in _TRACEBACKS if value.get(key) for words in str(value[key]).splitlines()]
        yield from (replace(line, text=cut(words)) for words in texts)
