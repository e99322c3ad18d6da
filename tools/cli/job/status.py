"""Show a job: its state, its pods, its progress and its remaining time."""

import math

from tools.cli.job import _options
from tools.core import UserError, output, wait
from tools.job.snapshot import collect, lookup
from tools.job.status import Status, lines
from tools.kube import Kubectl
from tools.kube.kubectl import CANNOT_SEE

EVERY = 5.0  # seconds between two snapshots of --watch


@_options.cluster
def command(kubectl: Kubectl, job: str | None, watch: bool, as_json: bool) -> int:
    wanted = lookup.find(kubectl, job)
    shown: object = None

    def ended() -> Status | None:
        nonlocal shown
        try:
            status = Status(collect.collect(kubectl, wanted))
        except UserError as problem:
            if shown is None or problem.code != CANNOT_SEE:
                raise
            output.note(f"not seen this time: {problem.message}")
            return None
        if shown != _facts(status):
            shown = _facts(status)
            _show(status, as_json)
        return status if status.state in ("Succeeded", "Failed") else None

    last = wait.until(ended, math.inf if watch else 0.0, EVERY)
    return 1 if last is not None and last.state == "Failed" else 0


def _show(status: Status, as_json: bool) -> None:
    if as_json:
        output.data(status.as_dict())
        return
    for line in lines(status):
        output.line(line)
    hint = {"Failed": "why", "New": "why", "Created": "why", "Running": "logs --follow"}.get(status.state)
    if hint:
        output.line(f"next: yard job {hint} {status.snapshot.name}")


def _facts(status: Status) -> object:
    """Return the values of a status without ages."""
    training = status.training()
    pods = [(pod["uid"], pod["state"], pod["restarts"], pod["node"]) for pod in status.pods()]
    return status.state, training["phase"], training["step"], training["checkpoints"], pods
