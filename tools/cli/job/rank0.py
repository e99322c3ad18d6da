"""Print the pod of rank 0, and the evidence for it.

The evidence is the heartbeat of rank 0, else the log that only rank 0 writes, else the operator's label. With
elastic workers the rendezvous assigns the ranks, so the label alone is a guess, printed with exit code 3.

\b
Examples:
  yard job rank0
  kubectl logs -f $(yard job rank0 cpu-llama-tiny-train --name)

\b
Exit codes: 0 certain, 3 unknown or a guess.
"""

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job.ranks import rank_zero
from tools.job.snapshot import collect
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="the pod of rank 0")
@_options.job
@_options.cluster
@click.option("--name", "only_name", is_flag=True, help="Print only the name, and nothing if it is a guess.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, only_name: bool, as_json: bool) -> None:
    _, seen = collect.find(kubectl, job)
    found = rank_zero(seen)
    if found is None:
        seen.require_pods()
        raise UserError(f"no pod of {seen.name} has the number 0", code=3)
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
