"""Failure records: one for each failing rank, which of them is the cause, and the pod's exit code.

This module imports nothing heavy: a pod's first process and the tools read records with it.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from training.run import clock, heartbeat
from training.run.directory import RunDir, read_json, write_json

_LONGEST = 400
_METRICS_LAG = 5.0  # seconds that a step's metrics may be written after its end

# Exit codes of a pod, by class. With 1 to 127 the same run would fail the same way again; with 128 and above
# another attempt may help. The training operator draws the same line for restartPolicy ExitCode. 78, 65 and
# 70 are EX_CONFIG, EX_DATAERR and EX_SOFTWARE of sysexits.h. 143 is 128 + SIGTERM; with 0 the operator would
# count a preempted pod as done.
CODES = {
    "done": 0,
    "config": 78,
    "data": 65,
    "nan": 70,
    "drained": 143,
    "out of memory": 160,
    "killed": 161,
    "hang": 162,
    "communication": 163,
    "lost peer": 164,
    "storage": 165,
    "upload": 166,
    "error": 167,
    "corruption": 168,
}
PERMANENT = frozenset(kind for kind, code in CODES.items() if 0 < code < 128)

# These are how a rank sees another rank's failure. They never outrank that failure, even if written first.
_VICTIMS = ("drained", "communication", "lost peer")

_LOST_PEER = (
    "closed by peer", "connection reset", "broken pipe", "remote process exited",
    "connection was likely closed", "socket closed",
)  # fmt: skip
_COMMUNICATION = (
    "gloo", "nccl", "timed out waiting", "rendezvous", "distnetworkerror", "watchdog caught collective",
)  # fmt: skip


class LossError(Exception):
    """The loss or the gradient norm of a step is not finite (`nan`), or jumped (`spike`).

    After a `final` one nothing is tried any more.
    """

    failure_class = "nan"

    def __init__(self, kind: Literal["nan", "spike"], step: int, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.kind, self.step, self.final = kind, step, final


class ReplicaError(Exception):
    """Ranks that must hold the same parameters do not; `here` is whether this rank is, or may be, a wrong one.

    Another attempt may help: it continues from a checkpoint that was written before, and other nodes can run it.
    """

    def __init__(self, message: str, *, here: bool) -> None:
        super().__init__(message)
        self.failure_class = "corruption" if here else "lost peer"


class UploadError(Exception):
    """The finished model could not be uploaded to its destination."""

    failure_class = "upload"


class Drained(Exception):
    """All ranks stopped at the same step on request, and committed it."""

    failure_class = "drained"


@dataclass(frozen=True)
class Failure:
    """One rank's record: the class of failure, where and when (`time` in seconds since the epoch).

    `phase` is what the rank was doing; `traceback` is Python's, or the stacks of a rank that hung.
    `clock` is what `training.run.clock` tells; `write` adds it.
    """

    kind: str
    rank: int
    host: str
    pid: int
    step: int | None
    message: str
    exception: str
    time: float
    phase: str | None = None
    traceback: str = ""
    path: Path | None = None
    clock: str = ""


def classify(error: BaseException) -> str:
    """Return the class of an exception, one of `CODES`.

    The trainer's own error classes carry it as `failure_class`, so that this module needs to import none of
    them. Other exceptions are classified by type, error number and text.
    """
    known = getattr(error, "failure_class", None)
    if known is not None:
        return str(known)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT):
        return "storage"
    kind_of_text = classify_text(str(error))
    if kind_of_text == "error" and type(error).__name__.startswith("Dist"):
        return "communication"
    return kind_of_text


def classify_text(text: str) -> str:
    """Class of a process's output: lost peer, communication, out of memory or error."""
    text = text.lower()
    if any(sign in text for sign in _LOST_PEER):
        return "lost peer"
    if any(sign in text for sign in _COMMUNICATION):
        return "communication"
    if "outofmemoryerror" in text or "out of memory" in text:
        return "out of memory"
    return "error"


def message(error: BaseException) -> str:
    """The error in one line of at most 400 characters; the record's traceback has the full text."""
    return one_line(str(error)) or type(error).__name__


def one_line(text: str) -> str:
    """`text` in one line of at most 400 characters."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def record(error: BaseException, rank: int, step: int | None, run: RunDir, phase: str | None = None) -> Path:
    """Write this rank's failure record and return its path."""
    return write(of(error, rank, step, phase), run)


def of(error: BaseException, rank: int, step: int | None, phase: str | None = None) -> Failure:
    """Return what a record says about an exception of this process."""
    return Failure(
        kind=classify(error),
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        step=step,
        message=message(error),
        exception=type(error).__name__,
        time=time.time(),
        phase=phase,
        traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
    )


def write(failure: Failure, run: RunDir) -> Path:
    """Write a record atomically, and return its path."""
    path = run.failures / f"{int(failure.time * 1000)}-rank-{failure.rank:05d}.json"
    values = asdict(failure)
    del values["path"]
    write_json(path, {"class": values.pop("kind"), **values, "clock": clock.told()})
    return path


def since(run: RunDir, start: float) -> list[Failure]:
    """The records written at `start` (seconds since the epoch) or later, in order. None if the directory is a link."""
    found = []
    for path in () if run.failures.is_symlink() else run.failures.glob("*.json"):
        moment = path.name.partition("-")[0]
        if moment.isdecimal() and int(moment) >= int(start * 1000):
            read = _read(path)
            if read is not None:
                found.append(read)
    return sorted(found, key=lambda failure: failure.time)


def incident(run: RunDir, start: float) -> list[Failure]:
    """The records since `start` that no step followed; a restart fixed the earlier ones."""
    records = since(run, start)
    moved = run.last_record().get("time")
    cured = -math.inf if moved is None else float(moved) - _METRICS_LAG
    return [record for record in records if record.time >= cured and not _followed(record, run)] or records


def _followed(failure: Failure, run: RunDir) -> bool:
    """Whether this rank has trained since then: its heartbeat is newer than the failure, and has a step."""
    beat = heartbeat.read(heartbeat.path_of(run.heartbeat, failure.rank))
    return beat is not None and beat.time > failure.time and beat.step is not None


def cause(failures: Iterable[Failure]) -> Failure | None:
    """The first failure that is not the consequence of another one, else the most telling consequence."""
    return min(failures, key=lambda failure: (_tier(failure.kind), failure.time), default=None)


def _tier(kind: str) -> int:
    """0 for a class that names its cause, 1 for an unknown exception, 2 to 4 for consequences."""
    if kind in _VICTIMS:
        return 2 + _VICTIMS.index(kind)
    return int(kind == "error")


def is_consequence(kind: str) -> bool:
    """Whether failures of this class follow from another failure or a request."""
    return kind in _VICTIMS


def _read(path: Path) -> Failure | None:
    """One record, or None for an incomplete one, whose writer was killed."""
    try:
        saved = read_json(path)
        return Failure(
            kind=str(saved["class"]),
            rank=int(saved["rank"]),
            host=str(saved["host"]),
            pid=int(saved.get("pid", 0)),
            step=saved.get("step"),
            message=str(saved["message"]),
            exception=str(saved.get("exception", "")),
            time=float(saved["time"]),
            phase=saved.get("phase"),
            traceback=str(saved.get("traceback", "")),
            path=path,
            clock=str(saved.get("clock", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
