"""Show a job: its state, its machines, its pods, its progress, its cost and its remaining time."""

import functools

from tools.cli.job import _options
from tools.core import State, UserError, output
from tools.job import status as statuses
from tools.job.snapshot import LiveJob, collect, lookup
from tools.job.status import Status
from tools.kube import Kubectl
from tools.kube.kubectl import CANNOT_SEE

EVERY = 5.0  # seconds between two snapshots of --watch in a terminal


@_options.cluster
def command(kubectl: Kubectl, job: str | None, watch: bool, as_json: bool) -> int:
    wanted = lookup.find(kubectl, job)
    status = Status(collect.collect(kubectl, wanted))
    with output.repainted(watch and not as_json) as page:
        every = EVERY if page.painter else output.LINE_SECONDS
        page.show(functools.partial(_show, status, as_json))
        while watch and status.state not in ("Succeeded", "Failed") and page.wait(every):
            before, status = status, _again(kubectl, wanted, status)
            if page.painter is not None or _facts(before) != _facts(status):
                page.show(functools.partial(_show, status, as_json))
    return 1 if status.state == "Failed" else 0


def _again(kubectl: Kubectl, wanted: LiveJob, before: Status) -> Status:
    """Return the status now, or the one before where the cluster does not answer."""
    try:
        return Status(collect.collect(kubectl, wanted))
    except UserError as problem:
        if problem.code != CANNOT_SEE:
            raise
        output.note(f"not seen this time: {problem.message}")
        return before


def _show(status: Status, as_json: bool) -> None:
    if as_json:
        output.data(status.as_dict())
        return
    for line in statuses.lines(status):
        output.line(line)
    pods = status.pods()
    bad = [State.WARN if one["state"] not in ("Running", "Succeeded", "Completed") else None for one in pods]
    output.table(statuses.table(pods), head=True, states=bad)
    hint = {"Failed": "why", "New": "why", "Created": "why", "Running": "logs --follow"}.get(status.state)
    if hint:
        output.line(f"next: yard job {hint} {status.snapshot.name}")


def _facts(status: Status) -> object:
    """Return the values of a status without ages."""
    training = status.training()
    pods = [(pod["uid"], pod["state"], pod["restarts"], pod["node"]) for pod in status.pods()]
    return status.state, training["phase"], training["step"], training["checkpoints"], pods
