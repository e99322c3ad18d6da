"""How a pod's attempt at a run ended: class and cause in `<run>/end.json`, and the pod's exit code."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.pod.exit_analysis import Output
from training.run import clock
from training.run.directory import LONGEST_JSON, RunDir, read_json, write_json
from training.run.exit_status import exit_in_words
from training.run.failure import CODES, PERMANENT, Failure, cause, classify_text, is_consequence, one_line
from training.run.files import end_of, read_bounded

POD_UID = "POD_UID"  # set by the manifest; stays the same when a container restarts in its pod
LAST_LINES = 12
READ = 16384  # bytes at the end of a rank's log
_USAGE = 2  # argparse's exit code for a wrong command line


@dataclass(frozen=True)
class Start:
    """One start of a pod's container: the pod's name, a unique id of this start, seconds since the epoch, the clock."""

    pod: str
    id: str
    time: float
    clock: str = field(default_factory=clock.told)


@dataclass(frozen=True)
class End:
    """The end of one attempt. `cause` is the failure that led to it, None if no rank could be named."""

    kind: str
    pod: str
    id: str
    started: float
    time: float
    message: str
    exception: str
    cause: Failure | None
    last_lines: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """The pod's exit code."""
        return CODES[self.kind]

    def summary(self) -> str:
        """The end in one line."""
        where = ""
        if self.cause is not None:
            step = "" if self.cause.step is None else f" at step {self.cause.step}"
            where = f"rank {self.cause.rank} on {self.cause.host}{step}: "
        return f"{self.kind}: {where}{self.message}"


def conclude(
    start: Start, code: int, records: Sequence[Failure], output: Output, stopping: bool, out_of_memory: bool
) -> End:
    """Conclude how an attempt ended from its launcher's exit code, its ranks' records and its output.

    `stopping` is whether the pod was asked to stop, `out_of_memory` whether the kernel killed a process in it
    for memory.
    """
    found = cause(records)
    if code == 0:
        found, kind, message = None, "done", "all ranks ended well"
    elif stopping and (found is None or is_consequence(found.kind)):
        kind, message = "drained", found.message if found else "stopped on request; no rank recorded that it saved"
    elif found is not None:
        kind, message = found.kind, found.message
    else:
        kind, message = _from_output(code, output, out_of_memory)
    printed = output.exception()
    return End(
        kind=kind,
        pod=start.pod,
        id=start.id,
        started=start.time,
        time=time.time(),
        message=message,
        exception=found.exception if found else printed[0] if printed and code else "",
        cause=found,
        last_lines=output.last(LAST_LINES),
    )


def write(end: End, run: RunDir, restarts: int) -> None:
    """Append this end to `<run>/attempts.jsonl`, and write `<run>/end.json` unless another pod's says more.

    `restarts` is how often torchrun restarted its group of workers in this pod.
    """
    attempts = run.path / "attempts.jsonl"
    row = {
        "pod": end.pod, "id": end.id, "started": end.started, "ended": end.time, "class": end.kind, "code": end.code,
        "rank": end.cause.rank if end.cause else None, "step": end.cause.step if end.cause else None,
        "restarts": restarts, "clock": clock.told(),
    }  # fmt: skip
    run.path.mkdir(parents=True, exist_ok=True)
    with attempts.open("ab") as file:
        file.write((json.dumps(row) + "\n").encode())
    if is_consequence(end.kind) and _another_pod_names_the_cause(end, run):
        return
    write_json(run.end, _values(end, run, _attempts_of(attempts, end.pod)))


def last_end() -> tuple[str, str] | None:
    """Class and summary of this pod's earlier end, after which no other attempt follows; None without one.

    It is kept in the pod's /tmp under the pod's id. A restarted container still has that file; a new pod,
    created after the fix, does not.
    """
    path = _marker()
    if path is None:
        return None
    try:
        found = read_json(path)
        kind, summary = str(found["class"]), str(found["summary"])
    except (OSError, ValueError, KeyError):
        return None
    return (kind, summary) if kind in CODES else None


def remember(end: End, *, final: bool) -> None:
    """Keep class and summary of a permanent or `final` end for this pod's next start."""
    path = _marker()
    if path is not None and (final or end.kind in PERMANENT):
        with contextlib.suppress(OSError):
            write_json(path, {"class": end.kind, "summary": end.summary()})


def _marker() -> Path | None:
    uid = os.environ.get(POD_UID)
    return Path(tempfile.gettempdir()) / f"trainyard-{uid}.json" if uid else None


def _from_output(code: int, output: Output, out_of_memory: bool) -> tuple[str, str]:
    """Class and message of an end without a rank's record."""
    how = f"the launcher {exit_in_words(code)}"
    if code == -9:
        if out_of_memory:
            return "out of memory", f"{how} for memory: the container was at its limit"
        return "killed", how
    printed = output.exception()
    last = output.last(1)
    if printed is not None:
        text = ": ".join(filter(None, printed))
        return classify_text(text), one_line(text)
    if code == _USAGE and last and "error:" in last[0]:
        return "config", one_line(last[0])
    return "error", one_line(f"{how}{': ' + last[0] if last else ''}")


def _another_pod_names_the_cause(end: End, run: RunDir) -> bool:
    """Whether another pod's end.json of the same time names a cause, while this end is only a consequence."""
    try:
        there = read_json(run.end)
        return float(there["time"]) >= end.started and not is_consequence(str(there["class"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _attempts_of(attempts: Path, pod: str) -> int:
    count = 0
    for line in read_bounded(attempts, LONGEST_JSON).splitlines():
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            count += json.loads(line).get("pod") == pod
    return count


def _values(end: End, run: RunDir, attempts: int) -> dict[str, Any]:
    failure = end.cause
    log = run.rank_log(failure.rank) if failure else None
    values = asdict(end)
    del values["cause"], values["kind"], values["id"]
    return {
        "class": end.kind,
        "code": end.code,
        "permanent": end.kind in PERMANENT,
        "rank": failure.rank if failure else None,
        "host": failure.host if failure else None,
        "step": failure.step if failure else None,
        "phase": failure.phase if failure else None,
        **values,
        "traceback": failure.traceback if failure else "",
        "last_lines": (_tail(log) if log else []) or end.last_lines,
        "record": failure.path.name if failure and failure.path else None,
        "attempts": attempts,
    }


def _tail(log: Path) -> list[str]:
    """The last lines of a rank's log."""
    try:
        return end_of(log, READ).splitlines()[-LAST_LINES:]
    except OSError:
        return []
