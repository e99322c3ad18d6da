"""Reads the metrics of a job on the cluster, or of a run directory, log file or standard input here."""

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from tools.cells.kustomize_graph import is_kustomization
from tools.core import UserError, output, repo, wait
from tools.job.metrics import series
from tools.job.metrics.series import Record, RunMetrics
from tools.job.snapshot import JobPod, Line, LiveJob, Snapshot, collect, log_lines, lookup
from tools.job.snapshot.pod_exec import in_pod
from tools.kube import Kubectl
from tools.kube.kubectl import each
from training.run import trainer_logs
from training.run.directory import RunDir, last_records
from training.run.files import read_bounded

METRICS = "metrics.jsonl"
STANDARD_INPUT = "-"
FILES = (".log", ".out", ".err", ".txt", ".jsonl", ".json", ".gz")  # a job's name does not end like this
GZIP = b"\x1f\x8b"
LARGEST = 256 << 20  # bytes of the files of a run that are read whole
LONGEST = 1 << 16  # characters of a line; no trainer prints a longer one
COMPILER = "PARALLEL_COMPILE||"  # in each line of neuron_parallel_compile
ALL = ("sh", "-c", 'exec cat "$TRAINYARD_RUN/metrics.jsonl"')
KNOWN = "print lines such as `step 12/400 loss 3.2`; `yard job metrics --help` lists the known trainers"


def read(kubectl: Kubectl, text: str | None) -> RunMetrics:
    """Return the metrics of what `text` names: a file, a run directory, a run of this checkout, or a job.

    Raises UserError if `text` names none of these, and with exit code 3 if there are no metrics.
    """
    if text == STANDARD_INPUT:
        return _from_lines(text, "standard input", _lines("standard input", sys.stdin.buffer, 0))
    if text is not None:
        path = here(text)
        if path is not None:
            return _from_file(path)
        if Path(text).suffix in FILES:
            raise UserError(f"{text}: no such file", "SOURCE is a job, a cell, a run directory or a log file")
        if "/" in text and Path(text).is_dir() and not is_kustomization(Path(text)):
            hint = "a run directory has this file: local/runs/NAME"
            raise UserError(f"{text}: no {METRICS} in this directory", hint)
    seen = collect.collect(kubectl, _job(kubectl, text), logs=False, run=False)
    return _from_job(Kubectl(kubectl.context, seen.namespace), seen)


def here(text: str) -> Path | None:
    """Return the file or run directory that `text` names on this machine."""
    path = Path(text).expanduser()
    if path.is_file() or (path / METRICS).is_file():
        return path
    run = repo.local() / "runs" / text
    return run if (run / METRICS).is_file() else None


def _job(kubectl: Kubectl, text: str | None) -> LiveJob:
    try:
        return lookup.find(kubectl, text)
    except UserError as problem:
        if text is None:
            raise
        message = f"no run, job, cell or log of that name: {text}"
        if "no such" not in problem.message:
            message = f"no run or log of that name here: {text}; {problem.message}"
        runs = sorted(path.parent.name for path in (repo.local() / "runs").glob(f"*/{METRICS}"))
        hint = "; ".join(filter(None, (f"runs here: {', '.join(runs) or 'none'}", problem.hint)))
        raise UserError(message, hint, problem.code) from None


def _from_file(path: Path) -> RunMetrics:
    file = path / METRICS if path.is_dir() else path
    try:
        with file.open("rb") as raw:
            lines = _lines(str(file), raw, file.stat().st_size)
            found = _from_lines(path.name if path.is_dir() else path.stem, str(file), lines)
    except OSError as problem:
        code = 3 if isinstance(problem, PermissionError) else 2
        raise UserError(f"{file}: {problem.strerror or problem}", code=code) from None
    return replace(found, heldout=_heldout(RunDir(path))) if path.is_dir() else found


def of_run(name: str, run: RunDir) -> RunMetrics:
    """Return the metrics in a run directory, also without a step."""
    try:
        lines = read_bounded(run.metrics, LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    return RunMetrics(name, series.from_jsonl(lines), heldout=_heldout(run))


def _heldout(run: RunDir) -> list[Record]:
    rows = last_records(run.heldout, LARGEST)
    return [Record(trainer_logs.number(row.get("loss")), row["step"]) for row in rows if type(row.get("step")) is int]


def _from_lines(name: str, source: str, texts: Iterable[str]) -> RunMetrics:
    compiler: list[str] = []
    records = series.from_log(_without_compiler(map(log_lines.line_of, texts), compiler))
    if not records and not compiler:
        raise UserError(f"{source}: no line with metrics", KNOWN, code=3)
    return RunMetrics(name, records, compiler)


def _without_compiler(lines: Iterable[Line], compiler: list[str]) -> Iterator[Line]:
    """Yield the lines of a trainer; append those of neuron_parallel_compile to `compiler`."""
    for line in lines:
        if COMPILER in line.text:
            compiler.append(line.text)
        else:
            yield line


def _lines(name: str, raw: IO[bytes], size: int) -> Iterator[str]:
    """Yield the lines of a log that may contain metrics, whatever its size; a gzip'd log is unpacked.

    A carriage return ends a line too, so each state of a progress bar is a line.
    """
    start = cast(io.BufferedReader, raw).peek(4)
    packed = gzip.GzipFile(fileobj=raw) if start.startswith(GZIP) else None
    encoding = "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    text = io.TextIOWrapper(cast(IO[bytes], packed or raw), encoding=encoding, errors="replace")
    note = wait.sparing(output.note)
    try:
        for count, line in enumerate(iter(lambda: text.readline(LONGEST), "")):
            # A line that begins with a date gives the lines after it their time.
            if trainer_logs.MAYBE.search(line) or line.startswith("20") or COMPILER in line:
                yield line
            if count % 4096 == 0 and size:
                note(f"{name}: {raw.tell() / size:.0%} read")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        output.note(f"{name}: the compressed file is cut off or damaged; the part before that was read")


def _from_job(kubectl: Kubectl, seen: Snapshot) -> RunMetrics:
    """Return the whole metrics of a job: from the run's file through a running pod, else from its logs."""
    for pod in (pod for pod in seen.pods if pod.running and pod.has_run_directory):
        try:
            records = series.from_jsonl(in_pod(kubectl, pod, *ALL).splitlines())
        except UserError:
            break  # not allowed, or not written yet: read the logs
        if records:
            return RunMetrics(seen.name, records)

    def logged(pod: JobPod) -> tuple[list[series.Record], list[str]]:
        compiler: list[str] = []
        lines = log_lines.read(_log(kubectl, pod), pod.name)
        return series.from_log(_without_compiler(lines, compiler)), compiler

    found = each(logged, seen.pods)
    longest = max((records for records, _ in found), key=len, default=[])
    compiler = [line for _, lines in found for line in lines]
    if not longest and not compiler:
        hint = f"yard job why {seen.name}: shows whether it trains"
        raise UserError(f"{seen.name}: no metrics in its run directory or its logs", hint, code=3)
    return RunMetrics(seen.name, longest, compiler)


def _log(kubectl: Kubectl, pod: JobPod) -> str:
    """Return a pod's log after the log of its container before the last restart."""
    words = ("logs", f"--container={pod.container_name}", "--timestamps", "--tail=-1")
    name, options = pod.previous
    answers = [kubectl.run(*words, *options, names=[name])] if pod.restarts else []
    answers.append(kubectl.run(*words, names=[pod.name]))
    return "".join(done.stdout for done in answers if done.returncode == 0)
