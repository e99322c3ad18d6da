"""How a pod's try at a run ended: its class and cause in `<run>/end.json`, and the pod's exit code."""

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
from training.run.directory import RunDir, read_json, write_json
from training.run.exit_status import exit_in_words
from training.run.failure import CODES, PERMANENT, Failure, cause, classify_text, is_consequence, one_line

POD_UID = "POD_UID"  # set by the manifest: a container that is restarted in its pod keeps it
LAST_LINES = 12
_USAGE = 2  # argparse's code for a command line that it does not understand


@dataclass(frozen=True)
class Start:
    """One start of a pod's container: the pod's name, an identity of its own, seconds since the epoch."""

    pod: str
    id: str
    time: float


@dataclass(frozen=True)
class End:
    """The end of one try. `cause` is the failure that led to it, None where no rank could be named."""

    kind: str
    pod: str
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
        """The end in one line for a person."""
        where = ""
        if self.cause is not None:
            step = "" if self.cause.step is None else f" at step {self.cause.step}"
            where = f"rank {self.cause.rank} on {self.cause.host}{step}: "
        return f"{self.kind}: {where}{self.message}"


def conclude(
    start: Start, code: int, records: Sequence[Failure], output: Output, stopping: bool, out_of_memory: bool
) -> End:
    """Say how a try ended whose launcher exited with `code`, from its ranks' records and its own output.

    `stopping` says that the pod was asked to stop, `out_of_memory` that the kernel killed for memory in it.
    """
    found = cause(records)
    if code == 0:
        found, kind, message = None, "done", "all ranks ended well"
    elif stopping and (found is None or is_consequence(found.kind)):
        kind, message = "drained", found.message if found else "stopped on request before the first step"
    elif found is not None:
        kind, message = found.kind, found.message
    else:
        kind, message = _from_output(code, output, out_of_memory)
    printed = output.exception()
    return End(
        kind=kind,
        pod=start.pod,
        started=start.time,
        time=time.time(),
        message=message,
        exception=found.exception if found else printed[0] if printed and code else "",
        cause=found,
        last_lines=output.last(LAST_LINES),
    )


def write(end: End, run: RunDir, restarts: int) -> None:
    """Add this end to `<run>/attempts.jsonl`, and make it `<run>/end.json` unless another pod's says more.

    `restarts` is how often torchrun gave up a group of workers in this pod.
    """
    attempts = run.path / "attempts.jsonl"
    row = {
        "pod": end.pod, "started": end.started, "ended": end.time, "class": end.kind, "code": end.code,
        "rank": end.cause.rank if end.cause else None, "step": end.cause.step if end.cause else None,
        "restarts": restarts,
    }  # fmt: skip
    run.path.mkdir(parents=True, exist_ok=True)
    with attempts.open("ab") as file:
        file.write((json.dumps(row) + "\n").encode())
    if is_consequence(end.kind) and _told_more_by_another(end, run):
        return
    write_json(run.end, _values(end, run, _attempts_of(attempts, end.pod)))


def permanent_end() -> tuple[str, str] | None:
    """Class and summary of this very pod's earlier end that nothing can cure, None where there was none.

    Known by the pod's identity in a file of its own /tmp, which a restarted container keeps and a new pod
    does not: whoever mends the data and makes the pod anew is not held up.
    """
    path = _marker()
    if path is None:
        return None
    try:
        found = read_json(path)
        kind, summary = str(found["class"]), str(found["summary"])
    except (OSError, ValueError, KeyError):
        return None
    return (kind, summary) if kind in PERMANENT else None


def remember(end: End) -> None:
    """Leave class and summary of an end that nothing can cure to this pod's next start."""
    path = _marker()
    if path is not None and end.kind in PERMANENT:
        with contextlib.suppress(OSError):
            write_json(path, {"class": end.kind, "summary": end.summary()})


def _marker() -> Path | None:
    uid = os.environ.get(POD_UID)
    return Path(tempfile.gettempdir()) / f"trainyard-{uid}.json" if uid else None


def _from_output(code: int, output: Output, out_of_memory: bool) -> tuple[str, str]:
    """Class and message of an end that no rank has recorded."""
    how = f"the launcher {exit_in_words(code)}"
    if code == -9:
        if out_of_memory:
            return "out of memory", f"{how} for memory: the container was at its limit"
        return "killed", how
    printed = output.exception()
    last = output.last(1)
    if printed is not None:
        name, text = printed
        return classify_text(f"{name}: {text}"), one_line(f"{name}: {text}")
    if code == _USAGE and last and "error:" in last[0]:
        return "config", one_line(last[0])
    return "error", one_line(f"{how}{': ' + last[0] if last else ''}")


def _told_more_by_another(end: End, run: RunDir) -> bool:
    """Whether end.json is of the same time and says a cause, where this end is only a consequence."""
    try:
        there = read_json(run.end)
        return float(there["time"]) >= end.started and not is_consequence(str(there["class"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _attempts_of(attempts: Path, pod: str) -> int:
    count = 0
    for line in attempts.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            count += json.loads(line).get("pod") == pod
    return count


def _values(end: End, run: RunDir, attempts: int) -> dict[str, Any]:
    failure = end.cause
    log = run.rank_log(failure.rank) if failure else None
    values = asdict(end)
    del values["cause"], values["kind"]
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
        "last_lines": _tail(log) or end.last_lines,
        "record": failure.path.name if failure and failure.path else None,
        "attempts": attempts,
    }


def _tail(log: Path | None) -> list[str]:
    """The last lines of a rank's own log."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-LAST_LINES:]
    except OSError:
        return []
