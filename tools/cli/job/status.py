"""Show a job: its state, its pods, how far training is and how long it will take.

What the run's own files say comes first (heartbeats, metrics, checkpoints, through a pod that runs), else
what its logs say. The time that is left is a range: the middle half of the latest steps' times.

\b
Examples:
  yard job status
  yard job status cpu-llama-tiny-train --watch
  yard job status overlays/p5/llama-3-1-8b --json

\b
Exit codes: 0 it runs, waits or has succeeded, 1 it has failed.
"""

from __future__ import annotations

import time

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job.snapshot import collect, lookup
from tools.job.status import Status, lines
from tools.kube.kubectl import CANNOT_SEE, Kubectl

EVERY = 5.0  # seconds between two looks


@click.command(help=__doc__, short_help="a job at a glance")
@_options.job
@_options.cluster
@click.option("-w", "--watch", is_flag=True, help="Print it again when something has changed.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, watch: bool, as_json: bool) -> None:
    name = lookup.job_name(kubectl, job)
    status = Status(collect.collect(kubectl, name))
    _show(status, as_json)
    while watch and status.state not in ("Succeeded", "Failed"):
        time.sleep(EVERY)
        try:
            before, status = status, Status(collect.collect(kubectl, name))
        except UserError as problem:
            if problem.code != CANNOT_SEE:
                raise
            output.note(f"not seen this time: {problem.message}")
            continue
        if _changed(before, status):
            _show(status, as_json)
    if status.state == "Failed":
        raise click.exceptions.Exit(1)


def _show(status: Status, as_json: bool) -> None:
    if as_json:
        output.data(status.as_dict())
        return
    for line in lines(status):
        output.line(line)
    hint = {"Failed": "why", "New": "why", "Created": "why", "Running": "logs --follow"}.get(status.state)
    if hint:
        output.line(f"next: yard job {hint} {status.snapshot.name}")


def _changed(before: Status, after: Status) -> bool:
    """Say whether anything but ages differs."""
    return _facts(before) != _facts(after)


def _facts(status: Status) -> object:
    training = status.training()
    pods = [(pod["uid"], pod["state"], pod["restarts"], pod["node"]) for pod in status.pods()]
    return status.state, training["phase"], training["step"], training["checkpoints"], pods
