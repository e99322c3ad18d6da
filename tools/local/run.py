"""One run of a ready job on this machine: data, volumes, pods, and what is said at its end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.core import output, processes, repo
from tools.core.errors import UserError
from tools.local import preconditions, report
from tools.local.job import LocalJob, at_port
from tools.simulator import run_progress, volumes
from tools.simulator.supervisor import End, Outcome, Supervisor

KEPT = (".lock", "cache")  # what a fresh start leaves in the run directory


def run(job: LocalJob, fresh: bool, as_json: bool) -> int:
    """Train `job` until it has succeeded, failed or was stopped; return the exit code of `yard`.

    Raises UserError where something is missing before the start, and for a run that failed.
    """
    if job.config is not None:
        preconditions.check_base(job.config, job.directory, job.source)
    done = None if fresh else report.finished(job)
    if done is not None:
        _conclude(job, done, as_json, already=True)
        return 0
    if job.config is not None:
        from training.models.counting import parameters

        preconditions.check_disk(job.directory, parameters(job.config.model))
    with preconditions.only_run(job.directory), _at_own_port(job) as job:
        materialise(job)
        prepare(job)
        if fresh:  # last, so that a mistake in what was asked costs no run
            clear(job.directory)
        return _train(job, as_json)


@contextmanager
def _at_own_port(job: LocalJob) -> Iterator[LocalJob]:
    """Give the job with pods that meet where no other run here does; its manifest's port, if that is free."""
    port = preconditions.rendezvous_port(job.local)
    if port is None:
        yield job
        return
    with preconditions.own_port(port, asked=job.change.port is not None) as own:
        if own != port:
            output.note(f"port {port} is taken on this machine; the pods meet at {own}")
            job = at_port(job, own)
        yield job


def clear(run_directory: Path) -> None:
    """Remove what a run has made; its lock is held, and what it compiled stays good.

    Everything is renamed before it is deleted: first what says that the run is finished, then what it could
    go on from, so that a removal cut short leaves nothing that is taken for a run.
    """
    doomed = run_directory.with_name(f".{run_directory.name}.removed-{time.time_ns()}")
    doomed.mkdir()
    first = ["report.json", "checkpoints"]
    rest = [path.name for path in run_directory.iterdir() if path.name not in (*KEPT, *first)]
    for name in (*first, *rest):
        if (run_directory / name).exists():
            (run_directory / name).rename(doomed / name)
    for leftover in run_directory.parent.glob(f".{run_directory.name}.removed-*"):
        shutil.rmtree(leftover)


def materialise(job: LocalJob) -> None:
    """Write the volumes of every pod; UserError for what the manifests lack."""
    for pod, local in zip(job.pods, job.local, strict=True):
        missing = volumes.materialise(pod, job.manifests, repo.local(), local.directory)
        if missing:
            raise UserError(f"pod {pod.name} needs {missing[0]}, which is not in {job.source}")


def show_example(job: LocalJob) -> None:
    """Print an example that `job` would be fine-tuned on, as the trainer reads it; nothing is trained."""
    if job.config is None:
        raise UserError(f"{job.source}: holds no trainer configuration, so there is no example to show")
    preconditions.check_base(job.config, job.directory, job.source)
    with preconditions.only_run(job.directory):
        materialise(job)
        prepare(job, "--show-example")


def prepare(job: LocalJob, *options: str) -> None:
    """Prepare the data that the job's configuration names, before any pod starts; UserError when it is bad.

    The trainer would do so itself; here it is done first, so that bad data is one error and no started job.
    """
    config, data = job.config_directory, job.local[0].environment.get("TRAINYARD_DATA")
    if config is None or data is None:
        return
    argv = [sys.executable, "-m", "training.prepare", "--config", str(config), "--data", data, *options]
    pod = job.local[0]
    child = processes.start(argv, pod.environment, repo.root(), None, subprocess.PIPE)
    assert child.stderr is not None
    try:
        said = child.stderr.read().decode(errors="replace")
        child.wait()
    finally:
        processes.kill_tree([child])
    if child.returncode == 0:
        return
    lines = [line for line in said.splitlines() if line.strip()]
    message = lines[-1] if lines else f"preparing the data {exit_reason(child.returncode)}"
    raise UserError(message.removeprefix("error: "), code=2 if child.returncode == 2 else 1)


def exit_reason(code: int) -> str:
    """Return why a helper process ended, in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def show_plan(job: LocalJob, as_json: bool) -> None:
    """Print what would be started, pod by pod; secrets are masked."""
    plans = [
        {
            "pod": pod.name,
            "command": pod.argv,
            "directory": str(pod.cwd),
            "environment": pod.shown_environment(),
            "volumes": [
                {"path": item.path, "local": str(item.local), "kind": item.kind} for item in pod.mounts
            ],
        }
        for pod in job.local
    ]
    if as_json:
        output.data({"job": job.name, "run": str(job.directory), "pods": plans})
        return
    pods = output.count(len(job.local), "pod")
    output.line(f"{job.source}: PyTorchJob {job.name}, {pods}, run {repo.shown(job.directory)}")
    for pod in job.local:
        output.line()
        output.line(f"pod {pod.name} (in {pod.cwd})")
        output.line(f"  command      {' '.join(pod.argv)}")
        for name, value in sorted(pod.shown_environment().items()):
            output.line(f"  environment  {name}={value}")
        for mount in pod.mounts:
            output.line(f"  volume       {mount.path} = {repo.shown(mount.local)} ({mount.kind})")


def _train(job: LocalJob, as_json: bool) -> int:
    started = time.time()
    names = ", ".join(pod.name for pod in job.local)
    output.note(f"starting {output.count(len(job.local), 'pod')}: {names}")
    relay = output.note if as_json else output.line
    supervisor = Supervisor(job.local, job.directory, job.success, job.backoff_limit, relay, output.note)
    outcome = supervisor.run()
    if outcome.left:
        raise UserError(f"processes that could not be ended: {sorted(outcome.left)}", code=1)
    if outcome.end is End.STOPPED:
        return _stopped(job, outcome)
    if outcome.end is End.FAILED:
        raise report.failure(job, outcome, started)
    done = report.read(job.directory)
    if done is not None:
        _conclude(job, done, as_json, already=False)
    elif job.config is not None:
        raise UserError(
            f"the pods ended without a report in {repo.shown(job.directory)}",
            f"log: {repo.shown(job.directory / 'logs')}",
            code=1,
        )
    else:
        output.line(f"{job.name}: all pods ended well; logs: {repo.shown(job.directory / 'logs')}")
    return 0


def _stopped(job: LocalJob, outcome: Outcome) -> int:
    step = run_progress.last_step(job.directory)
    saved = run_progress.newest_checkpoint(job.directory)
    kept = f"checkpoint {repo.shown(saved)}" if saved else "no checkpoint yet"
    output.note(f"stopped after step {step}; {kept}" if step is not None else f"stopped; {kept}")
    output.note(f"  to continue: {report.continue_command(job)}")
    return 128 + int(outcome.signal)


def _conclude(job: LocalJob, done: report.Report, as_json: bool, already: bool) -> None:
    if as_json:
        output.data(report.as_data(job, done))
        return
    if already:
        output.line(f"{job.name} has already made its {done['step']} steps.")
    report.show(job, done)
