"""Where metrics are read from: a job on the cluster, a run directory or a log file on this machine."""

from __future__ import annotations

from pathlib import Path

from tools import repo
from tools.errors import UserError
from tools.job import collect, find, loglines, metrics
from tools.job.collect import container_name, in_pod
from tools.job.metrics import Record
from tools.job.plot import Run
from tools.job.snapshot import Snapshot
from tools.kubectl import Kubectl

METRICS = "metrics.jsonl"
ALL = ("sh", "-c", 'exec cat "$TRAINYARD_RUN/metrics.jsonl"')


def records(kubectl: Kubectl, text: str | None) -> Run:
    """Return all records of what `text` names: a file, a run directory, a run of this checkout, or a job.

    UserError where it is none of these, and with exit code 3 where nothing of it can be read.
    """
    path = _here(text)
    if path is not None:
        return Run(path.name if path.is_dir() else path.stem, _from_file(path))
    seen = collect.collect(kubectl, find.job_name(kubectl, text), logs=False, run=False)
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
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise UserError(f"{file}: {problem.strerror}") from None
    return read(text, str(file))


def read(text: str, source: str) -> list[Record]:
    """Return the records in a metrics.jsonl or a known trainer's log; UserError where there is none."""
    found = metrics.from_jsonl(text.splitlines()) or metrics.from_log(loglines.read(text))
    if not found:
        hint = "known: metrics.jsonl, and the log lines of the trainers that tools/job/metrics.py names"
        raise UserError(f"{source}: no line with metrics", hint, code=3)
    return found


def _from_job(kubectl: Kubectl, seen: Snapshot) -> list[Record]:
    """Return the whole metrics of a job: from the run's file through a pod that runs, else from its logs."""
    for pod in (pod for pod in seen.pods if pod.running and collect.names_run(pod)):
        try:
            found = metrics.from_jsonl(in_pod(kubectl, pod, *ALL).splitlines())
        except UserError:
            break  # it may not be allowed, or not be written yet: the logs are left
        if found:
            return found
    longest: list[Record] = []
    for pod in seen.pods:
        done = kubectl.run(
            "logs", pod.name, f"--container={container_name(pod)}", "--timestamps", "--tail=-1"
        )
        found = metrics.from_log(loglines.read(done.stdout, pod.name)) if done.returncode == 0 else []
        longest = max(longest, found, key=len)
    if not longest:
        hint = "yard job why says whether it trains"
        raise UserError(f"{seen.name}: no metrics in its run directory or its logs", hint, code=3)
    return longest
