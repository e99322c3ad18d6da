"""The lines of a log that report a failure, and how much each proves.

Reported is an exception at the end of its traceback, with the lines that belong to its message, a line of
level ERROR or above, a message of the runtime below Python, and torchrun's word about a child that a signal
has ended. A word in an INFO line or in a warning proves nothing: `config file not found, using defaults` is
not why a job failed. Nor does what training has survived: steps behind it say that it was handled.
"""

from __future__ import annotations

import enum
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tools.job.diagnosis import log_patterns
from tools.job.metrics import series
from tools.job.snapshot.log_lines import Line

SURVIVED = 3  # steps behind a report: no rank takes one when another has failed, and lines may be late
MESSAGE = 6  # lines that an exception's message may go on for


class Weight(enum.IntEnum):
    """How much a report proves of why a process ended; the lower one counts for more."""

    UNCAUGHT = 0  # torch marks what ends a rank with its number, and the trainer's own line says so
    RAISED = 1  # an exception, which may have been caught
    LOGGED = 2  # a line of level ERROR, or a message of the runtime
    HINT = 3  # a library's warning that also stands in the logs of healthy jobs
    CHILD = 4  # torchrun on the signal that ended a child


@dataclass(frozen=True)
class Report:
    """One report: its first line, all its words on one line, and for CHILD the number of the signal.

    `place` is the file, line, function and code in which an exception was raised, `/a.py:12, in f | f(x)`,
    where its traceback says so, but for Python's own.
    """

    line: Line
    text: str
    weight: Weight
    exception: bool = False
    signal: int = 0
    place: str = ""


# What ranks, torchrun, srun, mpirun, Ray and log collectors write before a line, any number of them.
_PREFIX = re.compile(
    r"^(?:\([^()]* pid=\d+[^()]*\) |\d+: |(?:\d{1,3}\.){3}\d{1,3}: |\[\d+,\d+\]<std\w+>:|"
    r"\[[\w-]+(?:: \d+)?\](?:: ?| )|[a-z][\w-]*\d[\w-]*: (?=(?:\w+\.)*\w*(?:Error|Exception)\b))*"
)
LONGEST = 60  # characters of what any other collector writes before a line
_TORCH_RANK = re.compile(r"\[rank\d+\]: ?$")
# The branches that Python draws around an exception group.
_BRANCH = re.compile(r"^\s+\| ?|^\s+\+[-+ \d]*$")
# What torchrun writes of a child's error file: JSON on several lines.
_ERROR_FILE = re.compile(r'^\s*"message": "(.+?)",?$')
_BEHIND = re.compile(r"\S(\[rank\d+\]: ?Traceback \()")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):(?: \(RANK \d+\))?$")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+(?:, in .+)?)')
_PYTHONS_OWN = re.compile(r"^<|/lib/python3\.\d+/(?!site-packages|dist-packages)")
_RAISED = re.compile(r"^(?:\w+\.)*[A-Za-z_]\w*(?:: |:?$)")
_EXCEPTION = re.compile(
    r"^(?:(?:\w+\.)*(?:\w+(?:Error|Interrupt|Exit|Timeout)|\w*Exception)|(?:\w+\.)+(?:\w*error|Timeout"
    r"|\w*(?:Failed|Failure|Invalid|NotFound|Unavailable|Denied|Refused|Mismatch|Exceeded|Unsupported))"
    r")(?:: |:?$)"
)
_CONTINUED = re.compile(r"\s+\S|nccl\w+Error: |Last error:")
# A level in capitals stands anywhere before the message, in small letters only at its beginning.
_LEVEL = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\[[EF](?:\d{3}| )|^[EF]\d{4} |"
    r"^[^A-Za-z]*(?:[\w./-]+:\s+){0,3}(?:(?i:fatal|panic)\b|(?i:error):\s(?!\s*[-+.\d]))"
)
_MILD = re.compile(r"\b(?:INFO|DEBUG|TRACE|WARN|WARNING|Warning|UserWarning|FutureWarning)\b")
_PYTHON_WARNS = re.compile(r":\d+: \w*Warning: ")
# torchrun's own words about its children: the consequence, never the cause, but for a child's signal.
_AGENT = re.compile(
    r"ChildFailedError|torch[./]distributed[./]elastic[./](?:multiprocessing|agent)|Root Cause|"
    r"traceback : (?:To enable|$)|error_file:"
)
_CHILD = re.compile(
    r"\b(?:exit|exited with) ?code\s*:? (-\d+)|exits with return code = (-\d+)"
    r"|\b(?:died|terminated|exited|killed)\b.{0,20}\b(?:signal|by) (\d+)\b(?! *times)"
)
_ASKED = re.compile(r"SignalException: Process \d+ got signal|Received (?:15|Signals\.SIGTERM) death signal")


def of(lines: Iterable[Line]) -> list[Report]:
    """Return the reports of a log, or of several merged by time, in order, without the survived ones."""
    every = [one for line in lines for one in _unfolded(line)]
    return list(_reports(every[_survived(every) :]))


def single(line: Line) -> Report | None:
    """Return what one line alone reports."""
    return next((report for one in _unfolded(line) for report in _reports([one])), None)


def _survived(lines: list[Line]) -> int:
    """Return the index of the step that shows that all before it was survived, 0 where none does."""
    steps = (index for index in reversed(range(len(lines))) if series.from_log([lines[index]]))
    return next(itertools.islice(steps, SURVIVED - 1, None), 0)


def _reports(lines: list[Line]) -> Iterator[Report]:
    open_tracebacks: dict[tuple[str, str], str] = {}  # the file of the last frame, by who writes
    read = 0  # lines before this one are part of a message
    prefixes = _collectors(lines)
    for index, line in enumerate(lines):
        if index < read:
            continue
        prefix = _prefix(line.text, prefixes)
        body = _BRANCH.sub("", line.text[len(prefix) :])
        writer = (line.pod, prefix)
        if _TRACEBACK.search(body):
            open_tracebacks[writer] = ""
            continue
        traced = writer in open_tracebacks
        if traced and (not body.strip() or body[0].isspace()):
            frame = _FRAME.match(body)
            if frame and not _PYTHONS_OWN.search(frame[1]):
                open_tracebacks[writer] = f"/{frame[1]}:{frame[2]}"
            elif not frame and " | " not in open_tracebacks[writer]:
                open_tracebacks[writer] += f" | {body.strip()}" if open_tracebacks[writer] else ""
            continue
        place = open_tracebacks.pop(writer, "")
        weight = _weight(prefix, body, traced and _RAISED.match(body) is not None)
        if weight is None:
            continue
        exception = weight <= Weight.RAISED
        following = lines[index + 1 : index + 1 + MESSAGE]
        message = list(_message(following, prefix, body.endswith(":"))) if exception else []
        read = index + 1 + len(message)
        child = _CHILD.search(body) if weight is Weight.CHILD else None
        yield Report(
            line,
            " ".join([body, *message]),
            weight,
            exception,
            abs(int(child[child.lastindex or 0])) if child else 0,
            place if exception else "",
        )


def _collectors(lines: list[Line]) -> set[str]:
    """Return what stands before a traceback's first line and before the next: a log collector's own words."""
    found = set()
    for line, following in itertools.pairwise(lines):
        match = _TRACEBACK.search(line.text)
        before = line.text[: match.start()] if match else ""
        own = before[len(_prefix(before, set())) :].strip("|")
        if (
            own
            and not _BRANCH.fullmatch(own)
            and len(before) <= LONGEST
            and following.text.startswith(before)
        ):
            found.add(before)
    return found


def _prefix(text: str, collectors: set[str]) -> str:
    """Return what stands before a line's own words."""
    known = _PREFIX.match(text)
    first = known[0] if known else ""
    return max((one for one in collectors if text.startswith(one)), key=len, default=first)


def _weight(prefix: str, body: str, raised: bool) -> Weight | None:
    """Return how much a line proves, None for one that reports nothing."""
    if _ASKED.search(body):
        return Weight.LOGGED
    if _CHILD.search(body):
        return Weight.CHILD
    if _AGENT.search(body):
        return None
    if raised or _EXCEPTION.match(body):
        return Weight.UNCAUGHT if _TORCH_RANK.search(prefix) else Weight.RAISED
    if log_patterns.hints().search(body):
        return Weight.HINT
    if _PYTHON_WARNS.search(body):
        return None
    if log_patterns.runtime().search(body) or (_LEVEL.search(prefix + body) and not _MILD.search(body)):
        return Weight.LOGGED
    return None


def _message(following: list[Line], prefix: str, last: bool) -> Iterator[str]:
    """Yield the further lines of an exception's message: all that torch marks as its rank's, or NCCL's.

    `last` says that the line before ends with a colon, and so says that another one comes.
    """
    marked = _TORCH_RANK.search(prefix)
    for line in following:
        body = line.text.removeprefix(prefix)
        new = (
            _TRACEBACK.search(body)
            or _MILD.search(body)
            or body.startswith(("[", "During handling", "The above exception"))
        )
        own = line.text.startswith(prefix) if marked else last or _CONTINUED.match(body)
        if new or not own:
            return
        last = body.endswith(":") or body.startswith("Last error:")
        yield body.strip()


def _unfolded(line: Line) -> Iterator[Line]:
    """Yield a line as it is, or of a line of JSON what it says at level ERROR or above, in plain words.

    A rank's traceback may begin behind words of somebody who has not ended the line.
    """
    if not line.text.startswith("{"):
        behind, told = _BEHIND.search(line.text), _ERROR_FILE.match(line.text)
        text = line.text[behind.start(1) :] if behind else told[1] if told else line.text
        yield line if text == line.text else replace(line, text=text)
        return
    try:
        value = json.loads(line.text)
    except ValueError:
        yield line
        return
    level = next((str(value[key]) for key in ("level", "levelname", "severity", "lvl") if key in value), None)
    if level is None:
        yield line
        return
    if level.upper() not in ("ERROR", "FATAL", "CRITICAL"):
        return
    said = [str(value[key]) for key in ("message", "msg", "event", "error") if value.get(key)]
    traced = [
        str(value[key]) for key in ("exc_info", "exception", "stack_trace", "traceback") if value.get(key)
    ]
    for number, text in enumerate([*said, *traced]):
        for words in text.splitlines():
            yield replace(line, text=f"ERROR {words}" if number < len(said) else words)
