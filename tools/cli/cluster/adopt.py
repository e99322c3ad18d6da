"""Add to a cluster that somebody else made: who may talk to it, the Pod Identity agent, what its pods may.

\b
Examples:
  yard cluster facts gpu-hyperpod --hyperpod ml-cluster --write
  yard cluster config gpu-hyperpod
  yard cluster adopt gpu-hyperpod --dry-run

\b
Exit codes: 0 done, as AWS says, 1 eksctl failed, 2 a fact or eksctl is missing, 3 AWS could not be asked.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cli.cluster.create import carry_out
from tools.cluster.spec import Spec
from tools.core.errors import UserError


@click.command(help=__doc__, short_help="add to a cluster that exists")
@_options.cluster_and_account
@click.option("--dry-run", is_flag=True, help="Print the commands only.")
@_options.as_json
def command(spec: Spec, session: Session, dry_run: bool, as_json: bool) -> None:
    if not spec.adopted:
        hint = "ADOPTED=true, or yard cluster create for one of its own"
        raise UserError(f"{spec.source}: ADOPTED=true is not set", hint)
    carry_out(spec, session, dry_run, as_json)
