"""Run directories by name: those of this machine, and those of jobs, whose files a pod of the job sends."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.cells.kustomize_graph import is_kustomization
from tools.core import UserError, nearest, output, repo
from tools.job import copy, volume_reader
from tools.job.snapshot import Snapshot, collect, lookup, pod_exec
from tools.kube import Kubectl
from training.checkpoint.layout import step_name
from training.run.directory import RunDir

# Any of these makes a directory a run.
_PARTS = ("run.json", "metrics.jsonl", "attempts.jsonl", "heartbeat")
_BROUGHT = (*_PARTS, "failures", "heldout.jsonl", "report.json", "end.json")


@dataclass(frozen=True)
class Run:
    """A run's files, and its job if they are those of a cluster."""

    name: str
    files: RunDir
    seen: Snapshot | None = None


@contextlib.contextmanager
def opened(kubectl: Kubectl, names: Sequence[str]) -> Iterator[tuple[list[Run], list[str]]]:
    """Yield the runs that the names mean; without a name those of a namespace that is given, else of this checkout.

    With them come the reasons why jobs of that namespace are not among them.

    A name is a run directory, a directory of them, a run of this checkout, a job or a cell; where a namespace is given,
    the name is not a run of this checkout. Raises UserError.
    """
    team = kubectl.namespace if not names else None
    seen = lookup.jobs(kubectl) if team else lookup.Jobs()
    unread = list(seen.hidden)
    wanted = [one.title for one in seen.topmost] or names or ([] if team else [str(repo.local() / "runs")])
    with contextlib.ExitStack() as stack:
        found = []
        for name in wanted:
            here = None if team else local(name, by_name=not kubectl.namespace)
            if here is not None:
                found += [Run(path.resolve().name, RunDir(path)) for path in here]
                continue
            try:
                found.append(_of_job(kubectl, name, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            except UserError as problem:  # one of a team's jobs, such as one that waits, hides no other
                if not team:
                    raise
                unread.append(f"CANNOT TELL: {problem.message}")
        if not found:
            for reason in unread:
                output.note(reason)
            where = team or ", ".join(names) or repo.shown(repo.local() / "runs")
            raise UserError(f"no run in {where}", "`make train` makes one; a job's name reads its volume", 3)
        yield found, unread


def local(name: str, by_name: bool = True) -> list[Path] | None:
    """Return the run directories on this machine that `name` means; None if it can only be a job or a cell.

    A name without a slash is a directory here first, then a run of this checkout, then a job. Not `by_name`, it is a
    job: that is what a namespace says.
    """
    path = Path(name).expanduser()
    plain = path.parts == (name,)
    if plain and not by_name:
        return None
    for one in (path, repo.local() / "runs" / name):
        if is_run(one):
            return [one]
    if path == repo.local() / "runs" or (path.is_dir() and not is_kustomization(path)):
        found = sorted(one for one in path.glob("*") if is_run(one) and not one.name.startswith("."))
        if found or not plain:
            return found
    if path.is_absolute() or name.startswith((".", "~", "local/")):
        raise UserError(f"{name}: no such directory", "a run directory is local/runs/NAME")
    return None


def is_run(path: Path) -> bool:
    """Return whether a directory has the files of a run, or may not be read: who reads it then says why."""
    try:
        return path.is_dir() and any((path / part).exists() for part in _PARTS)
    except PermissionError:
        return True


def _of_job(kubectl: Kubectl, name: str, target: Path) -> Run:
    """Copy the small files of a job's run directory through one of its pods."""
    try:
        here, seen = collect.find(kubectl, name, logs=False, run=False, around=True)
    except UserError as problem:
        runs = [path.name for path in local(str(repo.local() / "runs")) or []]
        near = nearest(name, runs)
        hint = f"did you mean {near}?" if near else f"runs here: {', '.join(runs) or 'none'}"
        raise UserError(f"{name}: no run of that name here; {problem.message}", hint, problem.code) from None
    names = sorted({pod.node for pod in seen.pods if pod.node})
    with contextlib.suppress(UserError):  # a team may not read nodes: then prices are unknown
        seen.objects["Node"] = here.items("nodes", "--ignore-not-found", names=names) if names else []
    with volume_reader.reading(here, seen, output.note) as pod:
        for part in _BROUGHT:
            try:
                copy.fetch(here, pod, part, target, lambda _: None)
            except UserError as problem:
                if problem.code != 2:  # 2: the run has no such file yet
                    raise
        unseen: dict[str, str] = {}
        told = pod_exec.run_directory(here, [pod], unseen) or {}
    for saved in told.get("checkpoints") or []:
        if isinstance(saved.get("step"), int) and 0 <= saved["step"] < 10**12:
            (target / "checkpoints" / step_name(saved["step"])).mkdir(parents=True, exist_ok=True)
    return Run(seen.name, RunDir(target), replace(seen, run=told))
