"""Let a role or user talk to a cluster's API server; show the difference first, and change nothing twice.

PRINCIPAL is any ARN, also that of an assumed role's session, which becomes its role's; without it, yourself.

\b
Examples:
  yard cluster access gpu --dry-run
  yard cluster access gpu arn:aws:iam::111122223333:role/team --policy edit --namespace training

\b
Exit codes: 0 it holds, 1 with --dry-run: it does not hold yet, 3 AWS could not be asked.
"""

from __future__ import annotations

import click

from tools.aws import principals
from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import access
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError


@click.command(help=__doc__, short_help="who may talk to the API server")
@_options.cluster_and_account
@click.argument("principal", required=False)
@click.option("--policy", type=click.Choice(sorted(access.POLICIES)), default="admin", show_default=True)
@click.option("--namespace", "namespaces", multiple=True, metavar="NAME", help="Only there; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show the difference only.")
@_options.as_json
def command(
    spec: Spec,
    session: Session,
    principal: str | None,
    policy: str,
    namespaces: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    who = principals.resolve(session, principal) if principal else principals.caller(session)
    if who.kind not in ("role", "user"):
        raise UserError(f"{who.arn}: an access entry is for a role or a user", "take a role")
    if not who.certain:
        hint = "give its own ARN (aws iam get-role), or allow iam:GetRole"
        raise UserError(f"the path of role {who.name} is not known, and access entries need it", hint, 3)
    grant = access.Grant(who.arn, policy, namespaces)
    changes = access.difference(session, spec.name, grant)
    lines = [line for change in changes for line in change.line.splitlines()]
    if not dry_run:
        access.apply(session, changes)
        left = access.difference(session, spec.name, grant) if changes else []
        if left:
            raise UserError(f"EKS took the change, and it does not hold: {left[0].line}", "repeat it", 1)
    if as_json:
        output.data({"principal": who.arn, "changes": lines, "applied": bool(changes) and not dry_run})
    else:
        output.line(f"{spec.name}: {who.arn}")
        for line in lines or [f"{access.POLICIES[policy]}: holds already"]:
            output.line(f"  {line}")
    if dry_run and changes:
        raise click.exceptions.Exit(1)
