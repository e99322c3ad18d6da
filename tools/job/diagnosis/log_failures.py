"""The lines of a log that report a failure, and how much each proves.

Reports are: an exception at the end of its traceback, with the lines of its message; a line of level ERROR or
above; a message of the runtime below Python; and torchrun's message about a child that a signal ended. Words
in INFO lines and warnings are no reports: `config file not found, using defaults` is not why a job failed.
Reports that training survived are left out: steps after a report show that it was handled.
"""

from __future__ import annotations

import enum
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tools.job.diagnosis import log_patterns
from tools.job.metrics import series
from tools.job.snapshot.log_lines import Line, cut

SURVIVED = 3  # steps after a report: no rank takes one when another has failed, but lines may be late
MESSAGE = 6  # further lines of an exception's message
FRAMES = 60  # of a traceback; the newest ones are kept


class Weight(enum.IntEnum):
    """How much a report proves about the end of a process; lower values prove more."""

    UNCAUGHT = 0  # an exception that ended a rank: torch puts the rank's number before it
    RAISED = 1  # an exception, which may have been caught
    LOGGED = 2  # a line of level ERROR, or a message of the runtime
    HINT = 3  # a library's warning that healthy jobs write too
    CHILD = 4  # torchrun's message about the signal that ended a child
    END = 5  # a program's message that something before it failed, or that a child failed


@dataclass(frozen=True)
class Report:
    """One report: its first line, its whole text on one line, and for CHILD the signal's number.

    `place` is where an exception was raised, `/a.py:12, in f | f(x)`: the last frame of its traceback that is
    not in Python's standard library. `stack` has all frames of that traceback and of those it comes from.
    `inner` marks an exception that another one follows from. `exception` marks what ended a process unless it
    was caught, in whatever language.
    """

    line: Line
    text: str
    weight: Weight
    exception: bool = False
    signal: int = 0
    place: str = ""
    stack: str = ""
    inner: bool = False


@dataclass
class _Traceback:
    """What was read of a traceback."""

    place: str = ""
    frames: list[str] = field(default_factory=list)
    ignored: bool = False


# Prefixes of ranks, torchrun, srun, mpirun, Ray and log collectors. A line may have several.
_PREFIX = re.compile(
    r"^(?:\((?:[^()]{0,100}? )?pid=\d++[^()]{0,100}+\) |\d+: |(?:\d{1,3}\.){3}\d{1,3}: |"
    r"\[\d+,[^\]<>]{1,40}\]<std\w+>:|\[[\w-]+(?:: \d+)?\](?:: ?| )|"
    r"[a-z](?=[\w-]*\d)[\w-]*+: (?=(?:\w+\.)*\w*(?:Error|Exception)\b))*+"
)
LONGEST = 100  # characters of another collector's prefix
# What collectors put before a line: CRI's stream, kubectl --prefix, Docker Compose, syslog, a time. A time
# differs from line to line, so it cannot be a part of a writer's name.
_COLLECTED = re.compile(
    r"^(?:std(?:out|err) [FP] |\[pod/[^\]\s]{1,300}\] ?|[\w.-]{1,80} +\| (?=\S|  )|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w.-]{1,40}(?:\[\d+\])?: |"
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:? "
    r"(?=Traceback|  |(?:\w+\.)*\w*(?:Error|Exception)\b))+"
)
_TORCH_RANK = re.compile(r"\[rank\d+\]: ?$")
# The lines that Python draws around an exception group.
_BRANCH = re.compile(r"^\s+\| ?|^\s+\+[-+ \d]*$")
# The message in a child's error file, which torchrun prints as JSON on several lines.
_ERROR_FILE = re.compile(r'^\s*"message": "(.+?)",?$')
_BEHIND = re.compile(r"\S(\[rank\d+\]: ?Traceback \()")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):(?: \(RANK \d+\))?$")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+(?:, in .+)?)')
# Notebooks print frames in another form, with numbers and an arrow before the lines of code.
_CELL_FRAME = re.compile(r"^(?:File )?\[?((?:~?/|<ipython)[^\s:]{1,300})(?::(\d{1,7}))?\S{0,40} in (\w+)")
_CELL_CODE = re.compile(r"^-+> ?\[?\d")
_PYTHONS_OWN = re.compile(r"^<|/lib/python3\.\d+/(?!site-packages|dist-packages)")
_RAISED = re.compile(r"^(?:\w+\.)*[A-Za-z_]\w*(?:: |:?$)")
_EXCEPTION = re.compile(
    r"^(?:(?:\w+\.)*(?:\w+(?:Error|Interrupt|Exit|Timeout)|\w*Exception)|(?:\w+\.){1,6}(?:errors?|exceptions?|exc)"
    r"\.[A-Z]\w+|(?:\w+\.)+(?:\w*error|Timeout"
    r"|\w*(?:Failed|Failure|Invalid|NotFound|Unavailable|Denied|Refused|Mismatch|Exceeded|Unsupported))"
    r")(?: \(see above for traceback\))?(?:: |:?$)"
)
_CONTINUED = re.compile(r"\s+\S|nccl\w+Error: |Last error:")
_CHAINED = ("During handling of the above", "The above exception was the direct")
# Python prints the traceback of an exception in a finalizer, which ends nothing.
_IGNORED = re.compile(r"^Exception ignored in|^(?:Warning|W): .{0,300}\bignored\b")
# Uncaught exceptions of other languages: C++, Go, Java, Rust.
_NATIVE = re.compile(
    r"^\s*what\(\):  ?\S|^terminate called after throwing an instance of|^panic: |^fatal error: \w+(?! loop)"
    r"|^Exception in thread \"|^Caused by: (?:\w+\.)+\w+|^thread '.{0,80}' (?:\(\d+\) )?panicked at "
    r"|^libc\+\+abi: terminating"
)
# glog's level of a warning, which torch's C++ code and Kubernetes' programs put first.
_WARNED = re.compile(r"^\[?W(?:\d{4}[ \]]|\d{3} | )")
# A level in capitals may be anywhere in a line; one in small letters only at its beginning.
_LEVEL = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\[[EF](?:\d{3}| )|^[EF]\d{4} |"
    r"^(?:[\w.-]{1,80}+ ){0,2}[EF]\d{4} \d\d:\d\d:\d\d\.|^\S{1,20}[ T]\S{1,20}: [EF] \w+/|"
    r"\b(?:level|lvl|severity)=\"?(?i:error|fatal|panic|critical)\b|[\[|<](?i:error|fatal|critical|err)[\]|>]|"
    r"^[^A-Za-z]*+(?:[\w./-]++(?::\d++)?:\s++){0,3}(?:(?i:fatal|panic)\b|(?i:error):\s(?!\s*+[-+.\d]))"
)
_MILD = re.compile(r"\b(?:INFO|DEBUG|TRACE|WARN|WARNING|Warning|UserWarning|FutureWarning)\b")
_PYTHON_WARNS = re.compile(r":\d+: \w*Warning: ")
# torchrun's messages about its children: consequences, except for the signal that ended a child.
_AGENT = re.compile(
    r"ChildFailedError|torch[./]distributed[./]elastic[./](?:multiprocessing|agent)|Root Cause|"
    r"traceback : (?:To enable|$)|error_file:"
)
_CHILD = re.compile(
    r"\b(?:exit|exited with) ?code\s*:? (-\d+)|exits with return code = (-\d+)"
    r"|\b(?:died|terminated|exited|killed|abort due to)\b.{0,20}\b(?:signal|by) (\d+)\b(?! *times)"
)
_ASKED = re.compile(
    r"SignalException: Process \d+ got signal|Received (?:1|2|15|Signals\.SIGTERM) death signal"
)

# The keys of JSON logs: structlog, Python's logging, zap and others.
_LEVELS = ("level", "levelname", "severity", "lvl")
_MESSAGES = ("message", "msg", "event", "error")
_ENVELOPES = ("log", "message", "msg")  # of collectors, which know no level
_TRACEBACKS = ("exc_info", "exception", "stack_trace", "traceback")


def of(lines: Iterable[Line]) -> list[Report]:
    """Return the reports of a log, or of several merged by time, without those that were survived."""
    every = [one for line in lines for one in _unfolded(line)]
    return list(_reports(every[_survived(every) :]))


def single(line: Line) -> Report | None:
    """Return the report of a single line, None if it reports nothing."""
    return next((report for one in _unfolded(line) for report in _reports([one])), None)


def _survived(lines: list[Line]) -> int:
    """Return the index of the step that shows that all reports before it were survived, else 0."""
    steps = (index for index in reversed(range(len(lines))) if series.from_log([lines[index]]))
    return next(itertools.islice(steps, SURVIVED - 1, None), 0)


def _reports(lines: list[Line]) -> Iterator[Report]:
    open_tracebacks: dict[tuple[str, str], _Traceback] = {}  # by pod and prefix
    earlier: dict[tuple[str, str], list[str]] = {}  # frames of the exception that the next one comes from
    read = 0  # lines before this one belong to a message
    prefixes = _collectors(lines)
    for index, line in enumerate(lines):
        if index < read:
            continue
        prefix = _prefix(line.text, prefixes)
        body = _BRANCH.sub("", line.text[len(prefix) :])
        writer = (line.pod, prefix)
        if _TRACEBACK.search(body):
            ignored = index > 0 and _IGNORED.search(lines[index - 1].text[len(prefix) :]) is not None
            open_tracebacks[writer] = _Traceback(frames=earlier.pop(writer, []), ignored=ignored)
            continue
        traceback = open_tracebacks.get(writer)
        if traceback is None and _FRAME.match(body):  # the log begins, or is cut, in a traceback
            traceback = open_tracebacks[writer] = _Traceback()
        if traceback and (
            not body.strip() or body[0].isspace() or _CELL_CODE.match(body) or _CELL_FRAME.match(body)
        ):
            _add_frame(traceback, body)
            continue
        raised = open_tracebacks.pop(writer, _Traceback())
        weight = _weight(prefix, body, traceback is not None and _RAISED.match(body) is not None)
        if weight is None or raised.ignored:
            continue
        exception = weight <= Weight.RAISED
        following = lines[index + 1 : index + 1 + MESSAGE]
        message = list(_message(following, prefix, body.rstrip().endswith(":"))) if exception else []
        read = index + 1 + len(message)
        inner = any(line.text[len(prefix) :].startswith(_CHAINED) for line in lines[read : read + 3])
        if inner:
            earlier[writer] = raised.frames
        child = _CHILD.search(body) if weight is Weight.CHILD else None
        signal = abs(int(child[child.lastindex or 0])) if child else 0
        yield Report(
            line, " ".join([body.rstrip(), *message]), weight, exception, signal,
            raised.place if exception else "", "\n".join(raised.frames[-FRAMES:]), inner,
        )  # fmt: skip


def _add_frame(traceback: _Traceback, body: str) -> None:
    """Add a line of a traceback: a frame, or the code of the frame before."""
    frame, cell = _FRAME.match(body), _CELL_FRAME.match(body)
    if cell:
        traceback.frames.append(f"/{cell[1]}:{cell[2] or 0}, in {cell[3]}")
        traceback.place = traceback.frames[-1]
    elif frame:
        traceback.frames.append(f"/{frame[1]}:{frame[2]}")
        if not _PYTHONS_OWN.search(frame[1]):
            traceback.place = traceback.frames[-1]
    elif traceback.place and " | " not in traceback.place and not body.lstrip()[:1].isdigit():
        traceback.place += f" | {body.strip()}"


def _collectors(lines: list[Line]) -> set[str]:
    """Return the prefixes that a log collector puts before a traceback's first line and before the next."""
    found = set()
    for line, following in itertools.pairwise(lines):
        match = _TRACEBACK.search(line.text)
        before = line.text[: match.start()] if match else ""
        own = before[len(_prefix(before, set())) :].strip("|")
        repeated = len(before) <= LONGEST and following.text.startswith(before)
        if own and repeated and not _BRANCH.fullmatch(own):
            found.add(before)
    return found


def _prefix(text: str, collectors: set[str]) -> str:
    """Return the prefix of a line."""
    known = _PREFIX.match(text)
    first = known[0] if known else ""
    return max((one for one in collectors if text.startswith(one)), key=len, default=first)


def _weight(prefix: str, body: str, raised: bool) -> Weight | None:
    """Return how much a line proves, None if it reports nothing."""
    if _ASKED.search(body):
        return Weight.LOGGED
    if _CHILD.search(body):
        return Weight.CHILD
    if _AGENT.search(body):
        return None
    if raised or _EXCEPTION.match(body.removeprefix(" ")):
        return Weight.UNCAUGHT if _TORCH_RANK.search(prefix) else Weight.RAISED
    if log_patterns.lines("hints").search(body):
        return Weight.HINT
    if _PYTHON_WARNS.search(body) or _WARNED.search(body) or _IGNORED.search(body):
        return None
    if _NATIVE.search(body):
        return Weight.RAISED
    if log_patterns.lines("runtime").search(body) or (
        _LEVEL.search(prefix + body) and not _MILD.search(body)
    ):
        return Weight.LOGGED
    ended = log_patterns.lines("ends").search(body) and not _MILD.search(prefix + body)
    return Weight.END if ended else None


def _message(following: list[Line], prefix: str, last: bool) -> Iterator[str]:
    """Yield the further lines of an exception's message: those that torch marks with its rank, and NCCL's.

    `last`: the line before ends with a colon, so another line follows.
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
    """Yield a line as it is, or the message of a line of JSON if its level is ERROR or above.

    A rank's traceback may begin in the middle of a line that another program has not ended.
    """
    if not line.text.startswith("{"):
        own = _COLLECTED.sub("", line.text)
        behind, told = _BEHIND.search(own), _ERROR_FILE.match(own)
        text = own[behind.start(1) :] if behind else told[1] if told else own
        yield line if text == line.text else replace(line, text=text)
        return
    try:
        value = json.loads(line.text)
    except (ValueError, RecursionError):
        value = {}
    level = next((str(value[key]) for key in _LEVELS if key in value), None)
    inside = next((value[key] for key in _ENVELOPES if isinstance(value.get(key), str)), "")
    if level is None and inside and not inside.startswith("{"):
        for words in inside.splitlines():
            yield from _unfolded(replace(line, text=cut(words)))
    elif level is None:
        yield replace(line, text=cut(line.text))
    elif level.upper() in ("ERROR", "FATAL", "CRITICAL"):
        messages = [str(value[key]) for key in _MESSAGES if value.get(key)]
        tracebacks = [str(value[key]) for key in _TRACEBACKS if value.get(key)]
        for text in messages:
            yield from (replace(line, text=cut(f"ERROR {words}")) for words in text.splitlines())
        for text in tracebacks:
            yield from (replace(line, text=cut(words)) for words in text.splitlines())
