"""Show what each of a cluster's service accounts may in AWS, prove it by simulation, or make it so.

The policies are made from the bucket's prefixes in cluster.env. eksctl.yaml holds them too, so a new cluster
has them; --apply is for one that exists, for changed facts, and for the runs of Flux, each of which has a
service account of its own. It asks IAM's simulator about each role that it made, where that may be asked.

Pods get their role by Pod Identity, or with --irsa by the cluster's own tokens (IRSA): for nodes where the
Pod Identity agent does not run. The commands that then annotate the service accounts are printed.

\b
Examples:
  yard cluster identity gpu                 the policies, as JSON with --json
  yard cluster identity gpu --simulate      ask IAM whether they allow what they should, and nothing else
  yard cluster identity gpu --apply         roles and Pod Identity associations
  yard cluster identity gpu --apply --irsa  roles and the account's identity provider
  yard cluster identity gpu --apply --dry-run

\b
Exit codes: 0 good, 1 IAM reads a policy otherwise, or with --dry-run: something differs, 3 cannot tell.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import finding, identity, service_accounts
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError


@click.command(help=__doc__, short_help="what pods may in AWS")
@_options.cluster_and_account
@click.option("--simulate", is_flag=True, help="Ask IAM's policy simulator.")
@click.option("--apply", "change", is_flag=True, help="Make roles, policies and associations.")
@click.option("--irsa", is_flag=True, help="With --apply: by the cluster's tokens, without an agent.")
@click.option("--dry-run", is_flag=True, help="With --apply: show what differs, change nothing.")
@_options.as_json
def command(
    spec: Spec, session: Session, simulate: bool, change: bool, irsa: bool, dry_run: bool, as_json: bool
) -> None:
    if (simulate and change) or ((dry_run or irsa) and not change):
        raise UserError("one of --simulate and --apply; --dry-run and --irsa go with --apply")
    accounts = service_accounts.of(spec, with_runs=True)
    if simulate:
        _simulated([identity.simulate(session, one) for one in accounts], as_json)
    if change:
        _applied(spec, session, accounts, irsa, dry_run, as_json)
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


def _simulated(findings: list[finding.Finding], as_json: bool) -> None:
    if as_json:
        output.data(finding.as_data(findings))
    else:
        finding.show(findings)
    raise click.exceptions.Exit(finding.exit_code(finding.worst(findings)))


def _applied(
    spec: Spec,
    session: Session,
    accounts: list[service_accounts.ServiceAccount],
    irsa: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    issuer = identity.issuer(session, spec) if irsa else None
    lines = identity.ensure_provider(session, spec, issuer, not dry_run) if issuer else []
    for one in accounts:
        lines += identity.ensure(session, spec, one, issuer, not dry_run)
    findings = [] if dry_run else [identity.simulate_role(session, spec, one) for one in accounts]
    commands = identity.annotate_commands(session, spec, accounts) if irsa else []
    if as_json:
        answer = {"changes": lines, "applied": bool(lines) and not dry_run, "annotate": commands}
        output.data(answer | {"simulation": finding.as_data(findings)})
    else:
        for line in lines or ["all as the facts want it"]:
            output.line(line)
        finding.show([one for one in findings if one.level is not finding.Level.PASS])
        for line in commands:
            output.note(f"next: {line}")
    if (dry_run and lines) or finding.worst(findings) is finding.Level.FAIL:
        raise click.exceptions.Exit(1)
