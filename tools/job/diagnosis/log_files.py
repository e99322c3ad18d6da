"""Why a job failed, from files of logs alone. Every line of evidence names its file and line."""

import codecs
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from tools.core import State, UserError, moment
from tools.core.output import count
from tools.job.diagnosis import exit_codes, log_causes, log_patterns, no_steps, performance
from tools.job.diagnosis.cause import CAUSES, Cause, short
from tools.job.diagnosis.explain import Explanation
from tools.job.diagnosis.log_causes import Found
from tools.job.diagnosis.log_failures import Reading
from tools.job.snapshot import log_lines
from tools.job.snapshot.log_lines import Line

STANDARD_INPUT = "-"
KEPT = 64 * 2**20  # bytes of a log that are read: its end
LARGEST = 2**30  # bytes of a log, unpacked
CHUNK = 2**20
GZIP = b"\x1f\x8b"
MOST = 512  # files
CUT = "the log ends inside a traceback, which shows where it failed and not why: give the lines that follow"
LEFT = "a process failed, and its own output is not in the log: give the log of that rank"
SHOWN = 3  # errors that training survived
NEAR = 200  # lines before a failure that may have its time
# Ranks in the names of files: `rank3.log`, and `attempt_0/3/stderr.log` of torchrun --log-dir.
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)|attempt_\d{1,6}/(\d{1,6})/std(?:out|err)\.log$")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[ T_](\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
_GLOG = re.compile(r"(?:^|\[)[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)")


@dataclass(frozen=True)
class LogFile:
    """One log: its name as it was given, its lines, and how many lines before them were not kept."""

    name: str
    lines: list[Line]
    skipped: int = 0

    @cached_property
    def reading(self) -> Reading:
        return Reading(self.lines)

    @property
    def rank(self) -> int | None:
        found = _RANK.search(self.name)
        return int(found[1] or found[2]) if found else None


def read(name: str) -> LogFile:
    """Return a log, also a gzip'd one; `-` is standard input. Of a long log the last 64 MiB are kept.

    UserError for what cannot be read, is not text, or has more than 1 GiB.
    """
    try:
        if name == STANDARD_INPUT:
            return _from(name, sys.stdin.buffer)
        with open(os.open(Path(name).expanduser(), os.O_RDONLY), "rb") as file:
            return _from(name, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise UserError(f"{name}: damaged gzip data: {problem}", "gunzip -t FILE tests it") from None
    except OSError as problem:
        raise UserError(f"{name}: {problem.strerror}", "--log takes files, or - for standard input") from None


def _from(name: str, file: IO[bytes]) -> LogFile:
    start = cast(io.BufferedReader, file).peek(4)
    packed = gzip.GzipFile(fileobj=file) if start.startswith(GZIP) else None
    chunks, size, skipped = [], 0, 0
    source = cast(IO[bytes], packed or file)
    wide = False
    while chunk := source.read(CHUNK):
        if not size:
            wide = chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            if not wide and b"\0" in chunk[:4096]:
                raise UserError(f"{name}: not a text", "--log takes logs, also gzip'd ones")
        size += len(chunk)
        if size > LARGEST:
            raise UserError(f"{name}: more than {LARGEST // 2**20:,} MiB", f"tail -c {KEPT} FILE cuts it")
        chunks.append(chunk)
        if len(chunks) > KEPT // CHUNK:
            skipped += chunks.pop(0).count(b"\n")
    data = b"".join(chunks)
    text = data.decode("utf-16" if wide else "utf-8-sig", "replace")
    lines = [replace(line, number=line.number + skipped) for line in log_lines.read(text, name)]
    return LogFile(name, lines, skipped)


def explain(files: Iterable[LogFile], code: int | None = None) -> Explanation:
    """Return the cause that logs show. Each file is the log of one rank or pod; `code` is its exit code.

    torchrun writes the exit code of a process that signal 9 ended as -9, a shell as 137.
    """
    logs = list(files)
    code = 128 - code if code is not None and code < 0 else code
    found = [(log, log_causes.cause_of(log.reading)) for log in logs]
    causes = [_cause(log, one, code) for log, one in found if one and not (one.unsure and code == 0)]
    checked = [
        f"{log.name}: {count(len(log.lines), 'line')}"
        + (f", {log.skipped:,} earlier lines were not read" if log.skipped else "")
        for log in logs
    ]
    if not all(cause.at for cause in causes):
        causes = [replace(cause, at=None) for cause in causes]
    if causes:
        # A launcher interrupts the other ranks when one has failed.
        causes.sort(key=lambda cause: (cause.kind == "drained", cause.kind in exit_codes.UNKNOWN, *cause.order))
        causes.sort(key=lambda cause: cause.layer)
        return Explanation(State.FAIL, causes[0].summary, causes, checked)
    return _without_failure(logs, code, checked)


def _without_failure(logs: list[LogFile], code: int | None, checked: list[str]) -> Explanation:
    """Return the answer for logs that report no failure."""
    seen = [no_steps.look(log.lines, bool(log.skipped), log.reading.records) for log in logs]
    kind = exit_codes.kind_of(code, accelerated=True) if code else None
    for log, one in zip(logs, seen, strict=True):
        for lost in performance.lost(one.records):
            evidence = [f"{log.name}: {fact}" for fact in lost.evidence]
            return Explanation(State.FAIL, lost.summary, [replace(lost, evidence=evidence)], checked)
        for lost in performance.lost_in_words(log.lines):
            return Explanation(State.FAIL, lost.summary, [lost], checked)
    survived = [(log, report) for log in logs for report in log.reading.survived()]
    if code and survived and kind is None and code not in (126, 127):
        log, report = survived[-1]
        cause = _cause(log, log_causes.of_survived(report), code)
        return Explanation(State.FAIL, cause.summary, [cause], checked)
    if code:
        last = next((line for log in logs for line in reversed(log.lines) if line.text.strip()), None)
        evidence = [short(f"exit code {code}, last line: {last.text.strip() if last else 'none'}")]
        cause = exit_codes.failure(kind or ("command" if code in (126, 127) else "crash"), "the process", evidence, "")
        advice = CAUSES[cause.kind].get("fix_of_file")
        cause = replace(cause, advice=advice, confidence="low: only the exit code shows it")
        if sign := log_patterns.of_signal(code - 128):
            cause = replace(cause, summary=f"the process: {sign.says}", advice=sign.fix)
        return Explanation(State.FAIL, cause.summary, [cause], checked)
    quit_early = next((one for one in seen if one.gave_up and not one.trained), None)
    silent = code == 0 and all(one.complete and not one.trained and not one.busy for one in seen)
    if quit_early or silent:
        said = quit_early or seen[0]
        place = said.gave_up or said.last
        evidence = [f"{_place(place)}: {short(place.text.strip())}"] if place else ["the log is empty"]
        cause = exit_codes.failure("no-steps", "the process", evidence, "")
        confidence = "high: the log says why" if quit_early else "medium: no line looks like training"
        return Explanation(State.FAIL, cause.summary, [replace(cause, confidence=confidence)], checked)
    cut, left, warned = zip(*(log.reading.unexplained() for log in logs), strict=True)
    for found, summary in ((cut, CUT), (left, LEFT)):
        if code is None and (line := next(filter(None, found), None)):
            told = f"{_place(line)}: {short(line.text.strip())}"
            return Explanation(State.CANNOT_TELL, summary, checked=[told, *checked])
    trained = [one.step for one in seen if one.trained]
    if trained or code == 0:
        steps = max((step for step in trained if step is not None), default=None)
        words = _survived([report.line for _, report in survived])
        words += f", the last step is {steps}" if steps is not None else ""
        return Explanation(State.PASS, words + (", exit code 0" if code == 0 else ""), checked=checked)
    checked += [f"the last warning: {_place(one)}: {short(one.text.strip())}" for one in warned if one]
    return Explanation(State.CANNOT_TELL, "no line reports a failure or a training step", checked=checked)


def _survived(lines: list[Line]) -> str:
    """Return what logs report that end well, with the places of the first errors that training survived."""
    if not lines:
        return "no line reports a failure"
    places = ", ".join(map(_place, lines[:SHOWN])) + (", …" if len(lines) > SHOWN else "")
    return f"no line reports a failure, but {count(len(lines), 'error')} that training survived ({places})"


def _cause(log: LogFile, found: Found, code: int | None) -> Cause:
    kind = exit_codes.with_signal(found.kind, found.exception, code)
    rank = found.rank if found.rank is not None else log.rank
    who = f"rank {rank}" if rank is not None else "the process" if log.name == STANDARD_INPUT else log.name
    evidence = found.cited(_place(found.line))
    evidence += [f"exit code {code}"] if code is not None else []
    at = found.line.time or _time(log, found.line)
    cause = found.cause(kind, who, evidence, log.name, at)
    advice = cause.advice or CAUSES.get(kind, {}).get("fix_of_file")
    return replace(cause, rank=rank, advice=advice, confidence=found.confidence)


def _place(line: Line) -> str:
    return f"{line.pod}:{line.number}"


def _time(log: LogFile, line: Line) -> datetime | None:
    """Return the time of a line: in its own text, else in the nearest line before it that has one."""
    index = line.number - log.skipped
    return next(_times(log.lines[max(0, index - NEAR) : index][::-1]), None)


def _times(lines: Iterable[Line]) -> Iterator[datetime]:
    """Yield the times that loggers wrote, read as UTC; glog writes no year, so that of today is taken."""
    for line in lines:
        text, found = line.text[:200], None
        if iso := _ISO.search(text):
            found = moment(f"{iso[1]}T{iso[2].replace(',', '.')}Z")
        elif glog := _GLOG.search(text):
            found = moment(f"{datetime.now(UTC).year}-{glog[1]}-{glog[2]}T{glog[3]}Z")
        if found:
            yield found
