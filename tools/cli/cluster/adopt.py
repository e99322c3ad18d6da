"""Add access entries, the Pod Identity agent and roles of pods to a cluster not created by trainyard.

\b
Examples:
  yard cluster init gpu-hyperpod --hyperpod ml-cluster --yes
  yard cluster config gpu-hyperpod
  yard cluster adopt gpu-hyperpod --dry-run

\b
Exit codes: 0 success, 1 eksctl failed, 2 a fact or eksctl is missing,
3 AWS did not answer or denied access.
"""

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cli.cluster.create import execute
from tools.cluster.spec import Spec
from tools.core.errors import UserError


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--dry-run", is_flag=True, help="Print the commands without running them.")
@_options.as_json
def command(spec: Spec, session: Session, dry_run: bool, as_json: bool) -> None:
    if not spec.adopted:
        hint = "set it to add to an existing cluster, or use yard cluster create"
        raise UserError(f"{spec.source}: ADOPTED=true is not set", hint)
    execute(spec, session, dry_run, as_json)
