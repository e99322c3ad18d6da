"""Give a role or user access to the cluster's API server with an EKS access entry."""

import click

from tools.aws import Session, principals
from tools.cli.cluster import _options
from tools.cluster import Spec, access
from tools.cluster.spec import NAMESPACE
from tools.core import UserError, output


@_options.cluster_and_account
@click.option(
    "--policy", type=click.Choice(sorted([*access.POLICIES, access.TEAM])), required=True, help="What to allow."
)
def command(
    spec: Spec,
    session: Session,
    principal: str | None,
    policy: str,
    namespaces: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    if policy == access.TEAM and not namespaces:
        raise UserError("--policy team needs --namespace", f"--namespace {spec.namespace}")
    for name in namespaces:
        if not NAMESPACE.fullmatch(name):
            raise UserError(f"{name!r} is not a namespace", "at most 63 of a-z, 0-9 and -")
    who = principals.resolve(session, principal) if principal else principals.caller(session)
    if who.kind not in ("role", "user"):
        raise UserError(f"{who.arn} is not a role or user, which an access entry needs", "use a role")
    if not who.certain:
        hint = "use the role's own ARN (aws iam get-role), or allow iam:GetRole"
        raise UserError(f"the path of the role {who.name}, which an access entry needs, is unknown", hint, 3)
    grant = access.Grant(who.arn, policy, namespaces)
    changes = access.difference(session, spec, grant)
    others = access.held(session, spec, who.arn).others(grant)
    lines = [line for change in changes for line in change.line.splitlines()]
    if not dry_run:
        access.apply(session, changes)
        left = access.difference(session, spec, grant) if changes else []
        if left:
            message = f"EKS accepted the change, but it is not in effect: {left[0].line}"
            raise UserError(message, "repeat the command", 1)
    applied = bool(changes) and not dry_run
    shown = lines or [f"{access.POLICIES.get(policy, policy)}: exists already"]
    shown = [f"{spec.name}: {who.arn}", *(f"  {line}" for line in shown), *(f"  stays: {line}" for line in others)]
    output.answer({"principal": who.arn, "changes": lines, "applied": applied, "others": others}, shown, as_json)
    return 1 if dry_run and changes else 0
