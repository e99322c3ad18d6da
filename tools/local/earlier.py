"""What earlier starts of a run have left: the values that it began with, and the trash of fresh starts."""

import contextlib
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tools.cells.knobs import name_after
from tools.core import UserError, output, repo
from tools.kube.json_patch import value_at
from tools.local import report
from tools.local.job import LocalJob
from training.checkpoint.layout import committed_steps, newest_committed
from training.run.directory import read_json

KEPT = (".lock", "data", "hub")  # what a fresh start leaves in the run directory
FIRST = ("report.json", "checkpoints")  # the files that mark a run as finished or resumable
TRASH, DAYS = ".trash", 7
STAMP = "%Y%m%dT%H%M%S.%fZ"
LONGER = "train.steps"  # more steps are the same run, continued


def check_settings(job: LocalJob, finished: bool) -> None:
    """Compare the values of --set with those that the run began with, and offer a run of its own.

    Raises UserError if the run has `finished`: it would train no step with the new values. A run that
    continues may take some of them, so that is a note.
    """
    changes = differences(job)
    if not changes or not (finished or newest_committed(job.directory / "checkpoints")):
        return
    named = replace(job, knobs=replace(job.knobs, name=_free_name(job, list(changes))))
    command = report.run_command(named.target, named.arguments())
    listed = ", ".join(f"{key} {old}, not {new}" for key, (old, new) in changes.items())
    if finished:
        message = f"{job.name} has made all its steps with {listed}"
        raise UserError(message, f"a run of its own: {command}; --fresh trains this one again")
    output.note(f"{job.name} began with {listed}; it continues with the new values")
    output.note(f"  a run of its own: {command}")


def differences(job: LocalJob) -> dict[str, tuple[Any, Any]]:
    """Return the keys of --set whose values differ from those that the run began with, with both values."""
    if job.config is None or job.knobs.name is not None:
        return {}
    try:
        before = read_json(job.directory / "run.json")["config"]
    except (OSError, ValueError, KeyError):
        return {}
    now = job.config.model_dump(mode="json")
    keys = [setting.partition("=")[0].strip() for setting in job.knobs.settings]
    paths = {key: tuple(key.split(".")) for key in keys if key != LONGER}
    found = {key: (value_at(before, path), value_at(now, path)) for key, path in paths.items()}
    return {key: (old, new) for key, (old, new) in found.items() if old != new}


def to_trash(run_directory: Path) -> None:
    """Move the results of a run whose lock is held to the trash beside it, and say where they are.

    Prepared data and downloaded weights stay. What marks the run as finished or resumable is moved first, so
    that an interrupted move leaves nothing that looks like a run.
    """
    rest = sorted(path.name for path in run_directory.iterdir() if path.name not in (*KEPT, *FIRST))
    names = [name for name in (*FIRST, *rest) if (run_directory / name).exists()]
    if not names:
        return
    steps = len(committed_steps(run_directory / "checkpoints"))
    trash = run_directory.parent / TRASH / run_directory.name / datetime.now(UTC).strftime(STAMP)
    trash.mkdir(parents=True)
    for name in names:
        (run_directory / name).rename(trash / name)
    held = f"{output.count(steps, 'checkpoint')} and the rest of the run" if steps else "the run"
    output.note(f"moved {held} to {repo.shown(trash)}, where it stays for {DAYS} days")


def empty_trash(runs: Path) -> None:
    """Delete what fresh starts moved to the trash of the directory `runs` more than DAYS days ago."""
    for path in runs.glob(f"{TRASH}/*/*"):
        with contextlib.suppress(ValueError):
            moved = datetime.strptime(path.name, STAMP).replace(tzinfo=UTC)
            if datetime.now(UTC) - moved > timedelta(days=DAYS):
                shutil.rmtree(path, ignore_errors=True)


def _free_name(job: LocalJob, keys: list[str]) -> str:
    """Return a name for a run with the changed keys that no run has yet."""
    settings = [one for one in job.knobs.settings if one.partition("=")[0].strip() in keys]
    room = max(1, 60 - max(len(pod.name) for pod in job.pods))
    name, number = name_after(settings, room), 1
    while job.directory.with_name(f"{job.directory.name}-{name}").exists():
        number += 1
        name = f"{name_after(settings, room)}-{number}"
    return name
