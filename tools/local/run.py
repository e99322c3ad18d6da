"""One run of a ready job on this machine: data, volumes, pods, and the summary."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tools.core import UserError, output, processes, repo
from tools.local import earlier, preconditions, report, steps
from tools.local.job import LocalJob, at_port
from tools.simulator import volumes
from tools.simulator.local_pod import gpus, visible_gpus
from tools.simulator.supervisor import End, Outcome, Supervisor
from training.agent import build
from training.checkpoint.layout import newest_committed
from training.run.directory import RunDir
from training.run.exit_status import exit_in_words

AGENT = "/trainyard-agent"  # where overlays/feature/agent mounts the volume of the agent


def run(job: LocalJob, fresh: bool, as_json: bool) -> int:
    """Train `job` until it succeeds, fails or is stopped, and return the exit code of `yard`.

    Files of the run are for this user only: they may hold the text that is trained on, and secrets.
    Raises UserError when something is missing before the start, and for a run that failed.
    """
    os.umask(0o077)
    preconditions.check_torch()
    if job.config is not None:
        preconditions.check_base(job.config, job.directory, job.source)
    done = None if fresh else report.finished(job)
    if not fresh:
        earlier.check_settings(job, finished=done is not None)
    if done is not None:
        _conclude(job, done, as_json, already=True)
        return 0
    earlier.empty_trash(job.directory.parent)
    if job.config is not None:
        from training.config.counting import parameters

        preconditions.check_disk(job.directory, parameters(job.config.model))
    with preconditions.only_run(job.directory), _at_own_port(job) as job:
        materialise(job)
        prepare(job)
        if fresh:  # last: a wrong argument must not cost the run
            earlier.to_trash(job.directory)
        return _train(job, as_json)


@contextmanager
def _at_own_port(job: LocalJob) -> Iterator[LocalJob]:
    """Yield the job with its pods meeting at a port that no other run here uses: its own, if that is free."""
    port = preconditions.rendezvous_port(job.local)
    if port is None:
        yield job
        return
    with preconditions.own_port(port, asked=job.port is not None) as own:
        if own != port:
            output.note(f"port {port} is taken on this machine; using port {own}")
            job = at_port(job, own)
        yield job


def materialise(job: LocalJob) -> None:
    """Write the volumes of every pod, and the agent, which an init container copies there in a cluster.

    Raises UserError for a missing object.
    """
    for pod, local in zip(job.pods, job.local, strict=True):
        missing = volumes.materialise(pod, job.manifests, repo.local(), local.directory)
        if missing:
            raise UserError(f"pod {pod.name} needs {missing[0]}, which is not in {job.source}")
        for mount in local.mounts:
            if mount.path == AGENT:
                build.build(mount.local / "agent.pyz")


def show_example(job: LocalJob) -> None:
    """Print an example of the fine-tuning data as the trainer reads it. Nothing is trained."""
    if job.config is None:
        raise UserError(f"{job.source}: holds no trainer configuration, so it has no example to show")
    preconditions.check_torch()
    preconditions.check_base(job.config, job.directory, job.source)
    with preconditions.only_run(job.directory):
        materialise(job)
        prepare(job, "--show-example")


def prepare(job: LocalJob, *options: str) -> None:
    """Prepare the data that the job's configuration names, before any pod starts.

    The trainer would do this itself. Doing it first turns bad data into one error instead of a started job.
    Raises UserError for bad data.
    """
    config, data = job.config_directory, job.local[0].environment.get("TRAINYARD_DATA")
    if config is None or data is None:
        return
    argv = [sys.executable, "-m", "training.prepare", "--config", str(config), "--data", data, *options]
    # Weights of the hub are downloaded for all runs, as base/services/prepare does.
    environment = {"HF_HUB_CACHE": f"{data}/hub", **job.local[0].environment}
    with tempfile.TemporaryFile() as complaint:
        child = processes.start(argv, environment, repo.root(), subprocess.PIPE, complaint)
        assert child.stdout is not None
        line = ""
        try:
            with output.activity("preparing the data", every=0.0) as now:
                for line in map(_text, child.stdout):
                    output.line(line) if options else now.at(line)
                child.wait()
        finally:
            processes.kill_tree([child])
        complaint.seek(0)
        said = complaint.read().decode(errors="replace")
    if child.returncode == 0:
        if line and output.watched():  # what the bar has shown is gone
            output.note(line)
        return
    lines = [line for line in said.splitlines() if line.strip()]
    message = lines[-1] if lines else f"preparing the data {exit_in_words(child.returncode)}"
    raise UserError(message.removeprefix("error: "), code=2 if child.returncode == 2 else 1)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")


def show_plan(job: LocalJob, as_json: bool) -> None:
    """Print what would start, pod by pod, with secrets masked."""
    plans = [
        {
            "pod": pod.name,
            "command": pod.argv,
            "directory": str(pod.cwd),
            "environment": pod.shown_environment(),
            "volumes": [{"path": item.path, "local": str(item.local), "kind": item.kind} for item in pod.mounts],
        }
        for pod in job.local
    ]
    if as_json:
        output.data({"job": job.name, "run": str(job.directory), "pods": plans})
        return
    pods = output.count(len(job.local), "pod")
    asked, there = sum(gpus(pod) for pod in job.pods), len(visible_gpus(os.environ))
    if asked > there:
        output.note(f"the job asks for {output.count(asked, 'GPU')}; this machine has {there}: it cannot run here")
    output.line(f"{job.source}: {job.kind} {job.name}, {pods}, run {repo.shown(job.directory)}")
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
    if job.config is None:
        _note_differences(job)
    output.note(f"starting {output.count(len(job.local), 'pod')}: {names}")
    with steps.shown(RunDir(job.directory), started, output.note if as_json else output.line) as relay:
        supervisor = Supervisor(job.local, job.directory, job.success, job.backoff_limit, relay, output.note)
        outcome = supervisor.run()
    if outcome.left:
        raise UserError(f"processes that could not be killed: {sorted(outcome.left)}", code=1)
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


def _note_differences(job: LocalJob) -> None:
    """Say what of a job of the user's own is not as in a cluster."""
    containers = [
        one
        for pod in job.pods
        for one in [*pod.spec["containers"], *(pod.spec.get("initContainers") or [])]
        if one is not pod.container and one.get("name") != AGENT.strip("/")
    ]
    left_out = {
        "the image": {str(pod.container.get("image")) for pod in job.pods},
        "containers": {str(one.get("name")) for one in containers},
    }
    named = "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in left_out.items() if names)
    output.note(f"not used here: {named}; the command runs in {job.local[0].cwd}")


def _stopped(job: LocalJob, outcome: Outcome) -> int:
    step = RunDir(job.directory).last_record().get("step")
    saved = newest_committed(job.directory / "checkpoints")
    kept = f"checkpoint {repo.shown(saved)}" if saved else "no checkpoint yet"
    output.note(f"stopped after step {step}; {kept}" if step is not None else f"stopped; {kept}")
    output.note(f"  to continue: {report.run_command(job.target, job.arguments())}")
    return 128 + int(outcome.signal)


def _conclude(job: LocalJob, done: report.Report, as_json: bool, already: bool) -> None:
    if as_json:
        output.data(report.as_data(job, done))
        return
    if already:
        output.line(f"{job.name} has already made its {done['step']} steps.")
    report.show(job, done)
