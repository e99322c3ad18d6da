"""Show, simulate or apply the IAM policies of a cluster's service accounts.

The policies are generated from the bucket and prefixes in cluster.env, for your account and region. `yard
cluster create` runs --apply; repeat it for changed facts, and for the runs of Flux, each of which has its own
service account. It then checks each role with IAM's simulator.

Pods get their role through Pod Identity, or with --irsa through tokens of the cluster (IRSA), for nodes
without the Pod Identity agent. External Secrets always uses IRSA. For IRSA, the commands that annotate the
service accounts are printed.

\b
Examples:
  yard cluster identity gpu                 print the policies
  yard cluster identity gpu --simulate      check with IAM that they allow what they should and nothing else
  yard cluster identity gpu --apply         roles and Pod Identity associations
  yard cluster identity gpu --apply --irsa  roles and the account's identity provider
  yard cluster identity gpu --apply --dry-run

\b
Exit codes: 0 success, 1 a simulation failed, or with --dry-run: a change is needed, 2 no such cluster or
wrong options, 3 AWS did not answer or denied access.
"""

from dataclasses import replace

import click

from tools.aws.policies import Place
from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import finding, identity, service_accounts
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import State


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--simulate", is_flag=True, help="Check the policies with IAM's simulator.")
@click.option("--apply", "change", is_flag=True, help="Create or correct roles, policies and associations.")
@click.option("--irsa", is_flag=True, help="With --apply: use IRSA instead of Pod Identity.")
@click.option("--dry-run", is_flag=True, help="With --apply: show the changes without making them.")
@_options.as_json
def command(
    spec: Spec, session: Session, simulate: bool, change: bool, irsa: bool, dry_run: bool, as_json: bool
) -> None:
    if (simulate and change) or ((dry_run or irsa) and not change):
        raise UserError("use --simulate or --apply; --dry-run and --irsa need --apply")
    place = _place(spec, session)
    accounts = service_accounts.of(spec, place, with_runs=True)
    if simulate:
        _simulated([identity.simulate(session, one) for one in accounts], as_json)
    if change:
        _applied(identity.Roles(session, spec, place), accounts, irsa, dry_run, as_json)
        return
    if as_json:
        output.data([vars(one) for one in accounts])
        return
    for one in accounts:
        output.line(f"{one.namespace}/{one.name}: {one.purpose}")
        for statement in one.policy["Statement"]:
            resources = statement["Resource"]
            where = resources if isinstance(resources, str) else ", ".join(resources)
            output.line(f"  {', '.join(statement['Action'])} on {where}")


def _place(spec: Spec, session: Session) -> Place:
    """Return where the roles are made. Raises UserError for credentials of another account."""
    place = Place.of(session)
    known = spec.get("AWS_ACCOUNT_ID") or place.account
    if known != place.account:
        message = f"{spec.at('AWS_ACCOUNT_ID')}: the cluster is in account {known}, your credentials in "
        raise UserError(message + place.account, "--profile NAME selects other credentials")
    return place


def _simulated(findings: list[finding.Finding], as_json: bool) -> None:
    if as_json:
        output.data(finding.as_data(findings))
    else:
        finding.show(findings)
    raise click.exceptions.Exit(finding.overall(findings).exit_code)


def _applied(
    roles: identity.Roles, accounts: list[service_accounts.ServiceAccount], irsa: bool, dry_run: bool, as_json: bool
) -> None:
    by_token = [one for one in accounts if irsa or one.needs_irsa]
    if by_token:
        roles = replace(roles, issuer=identity.issuer(roles.session, roles.spec))
    lines = identity.ensure_provider(roles, not dry_run) if by_token else []
    for one in accounts:
        lines += identity.ensure(roles, one, one in by_token, not dry_run)
    findings = [] if dry_run else [identity.simulate_role(roles, one) for one in accounts]
    commands = identity.annotate_commands(roles, by_token)
    if as_json:
        answer = {"changes": lines, "applied": bool(lines) and not dry_run, "annotate": commands}
        output.data(answer | {"simulation": finding.as_data(findings)})
    else:
        for line in lines or ["up to date"]:
            output.line(line)
        finding.show([one for one in findings if one.state is not State.PASS])
        for line in commands:
            output.note(f"next: {line}")
    if (dry_run and lines) or finding.overall(findings) is State.FAIL:
        raise click.exceptions.Exit(1)
