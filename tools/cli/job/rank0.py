"""Print the pod of rank 0, and how that was decided.

Rank 0's heartbeat decides, else the log that only rank 0 writes, else the operator's label. With elastic
workers the rendezvous gives out the ranks, so that a label alone is a guess: it is printed with exit code 3.

\b
Examples:
  yard job rank0
  kubectl logs -f $(yard job rank0 cpu-llama-tiny-train --name)

\b
Exit codes: 0 certain, 3 it cannot be told.
"""

from __future__ import annotations

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job.ranks import rank_zero
from tools.job.snapshot import collect, lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="which pod is rank 0")
@_options.job
@_options.cluster
@click.option(
    "--name", "only_name", is_flag=True, help="Print the name alone, and nothing where it is a guess."
)
@_options.as_json
def command(kubectl: Kubectl, job: str | None, only_name: bool, as_json: bool) -> None:
    seen = collect.collect(kubectl, lookup.job_name(kubectl, job))
    found = rank_zero(seen)
    if found is None:
        raise UserError(f"{seen.name} has no pods", "yard job why says what it waits for", code=3)
    if as_json:
        facts = {"pod": found.pod.name, "uid": found.pod.uid, "node": found.pod.node}
        output.data({"job": seen.name, **facts, "certain": found.certain, "how": found.how})
    elif only_name:
        if not found.certain:
            raise UserError(f"perhaps {found.pod.name}: {found.how}", code=3)
        output.line(found.pod.name)
    else:
        sure = "" if found.certain else "perhaps "
        output.line(f"{sure}{found.pod.name} ({found.pod.uid}): {found.how}")
    raise click.exceptions.Exit(0 if found.certain else 3)
