"""Where metrics are read from: a job on the cluster, a run directory or a log file on this machine."""

from __future__ import annotations

import codecs
import gzip
import io
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from tools.cells import locate
from tools.core import output, repo
from tools.core.errors import UserError
from tools.job.metrics import series, trainer_logs
from tools.job.metrics.plot import Run
from tools.job.metrics.series import Record
from tools.job.snapshot import collect, log_lines, lookup
from tools.job.snapshot.collect import container_name, in_pod
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.kubectl import Kubectl

METRICS = "metrics.jsonl"
FILES = (".log", ".out", ".err", ".txt", ".jsonl", ".json", ".gz")  # no job has such a name
GZIP = b"\x1f\x8b"
LONGEST = 1 << 16  # characters of a line; a longer one is no trainer's
TELL = 2.0  # seconds between lines of progress
ALL = ("sh", "-c", 'exec cat "$TRAINYARD_RUN/metrics.jsonl"')


def records(kubectl: Kubectl, text: str | None) -> Run:
    """Return all records of what `text` names: a file, a run directory, a run of this checkout, or a job.

    UserError where it is none of these, and with exit code 3 where nothing of it can be read.
    """
    path = _here(text)
    if path is not None:
        return Run(path.name if path.is_dir() else path.stem, _from_file(path))
    if text is not None and Path(text).suffix in FILES:
        raise UserError(f"{text}: no such file", "SOURCE is a job, a cell, a run directory or a log file")
    if text is not None and "/" in text and Path(text).is_dir() and not locate.is_kustomization(Path(text)):
        raise UserError(f"{text}: no {METRICS} in this directory", "a run directory has one: local/runs/NAME")
    seen = collect.collect(kubectl, lookup.job_name(kubectl, text), logs=False, run=False)
    return Run(seen.name, _from_job(Kubectl(kubectl.context, seen.namespace), seen))


def _here(text: str | None) -> Path | None:
    """Return the file or run directory that `text` names on this machine."""
    if text is None:
        return None
    path = Path(text).expanduser()
    if path.is_file() or (path / METRICS).is_file():
        return path
    run = repo.local() / "runs" / text
    return run if (run / METRICS).is_file() else None


def _from_file(path: Path) -> list[Record]:
    file = path / METRICS if path.is_dir() else path
    try:
        with file.open("rb") as raw:
            return _known(_lines(file, raw), str(file))
    except OSError as problem:
        raise UserError(f"{file}: {problem.strerror or problem}") from None


def read(text: str, source: str) -> list[Record]:
    """Return the records in a metrics.jsonl or a known trainer's log; UserError where there is none."""
    return _known(text.splitlines(), source)


def _known(lines: Iterable[str], source: str) -> list[Record]:
    found = series.from_log(map(log_lines.line_of, lines))
    if not found:
        hint = "known: metrics.jsonl, and the log lines of trainers in tools/job/metrics/trainer_logs.py"
        raise UserError(f"{source}: no line with metrics", hint, code=3)
    return found


def _lines(path: Path, raw: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a log that may say something, whatever its length, also of a compressed one.

    Carriage returns end a line too: what a bar has overwritten is a line of its own.
    """
    start = raw.read(4)
    raw.seek(0)
    packed = gzip.GzipFile(fileobj=raw) if start.startswith(GZIP) else None
    encoding = "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    text = io.TextIOWrapper(cast(IO[bytes], packed or raw), encoding=encoding, errors="replace")
    size, told = path.stat().st_size, time.monotonic()
    try:
        for count, line in enumerate(iter(lambda: text.readline(LONGEST), "")):
            if trainer_logs.MAYBE.search(line) or line.startswith("20"):  # a time, for the lines behind it
                yield line
            if count % 4096 == 0 and time.monotonic() - told > TELL:
                told = time.monotonic()
                output.note(f"{path}: {raw.tell() / max(1, size):.0%} read")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        output.note(f"{path}: the compressed file is cut off or damaged: what could be read of it was")


def _from_job(kubectl: Kubectl, seen: Snapshot) -> list[Record]:
    """Return the whole metrics of a job: from the run's file through a pod that runs, else from its logs."""
    for pod in (pod for pod in seen.pods if pod.running and collect.names_run(pod)):
        try:
            found = series.from_jsonl(in_pod(kubectl, pod, *ALL).splitlines())
        except UserError:
            break  # it may not be allowed, or not be written yet: the logs are left
        if found:
            return found
    longest: list[Record] = []
    for pod in seen.pods:
        found = series.from_log(log_lines.read(_log(kubectl, pod), pod.name))
        longest = max(longest, found, key=len)
    if not longest:
        hint = "yard job why says whether it trains"
        raise UserError(f"{seen.name}: no metrics in its run directory or its logs", hint, code=3)
    return longest


def _log(kubectl: Kubectl, pod: JobPod) -> str:
    """Return a pod's log, behind that of its container before the last restart; empty where none is seen."""
    words = ("logs", pod.name, f"--container={container_name(pod)}", "--timestamps", "--tail=-1")
    each = [(*words, "--previous")] if pod.restarts else []
    answers = [kubectl.run(*one) for one in (*each, words)]
    return "".join(done.stdout for done in answers if done.returncode == 0)
