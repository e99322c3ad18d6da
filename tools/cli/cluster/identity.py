"""Show, simulate or apply the IAM policies of a cluster's service accounts."""

from collections.abc import Iterator
from dataclasses import replace

from tools.aws import Session
from tools.aws.policies import Place
from tools.cli.cluster import _options
from tools.cluster import Spec, finding, identity, service_accounts
from tools.core import State, UserError, output, worst


@_options.cluster_and_account
def command(
    spec: Spec, session: Session, simulate: bool, change: bool, irsa: bool, dry_run: bool, as_json: bool
) -> int:
    if (simulate and change) or ((dry_run or irsa) and not change):
        raise UserError("use --simulate or --apply; --dry-run and --irsa need --apply")
    place = _place(spec, session)
    accounts = service_accounts.of(spec, place, with_runs=True)
    if simulate:
        return _simulated([identity.simulate(session, one) for one in accounts], as_json)
    if change:
        return _applied(identity.Roles(session, spec, place), accounts, irsa, dry_run, as_json)
    output.answer([vars(one) for one in accounts], (line for one in accounts for line in _lines(one)), as_json)
    return 0


def _lines(account: service_accounts.ServiceAccount) -> Iterator[str]:
    yield f"{account.namespace}/{account.name}: {account.purpose}"
    for statement in account.policy["Statement"]:
        resources = statement["Resource"]
        where = resources if isinstance(resources, str) else ", ".join(resources)
        yield f"  {', '.join(statement['Action'])} on {where}"


def _place(spec: Spec, session: Session) -> Place:
    """Return where the roles are made. Raises UserError for credentials of another account."""
    place = Place.of(session)
    known = spec.get("AWS_ACCOUNT_ID") or place.account
    if known != place.account:
        message = f"{spec.at('AWS_ACCOUNT_ID')}: the cluster is in account {known}, your credentials in "
        raise UserError(message + place.account, "--profile NAME selects other credentials")
    return place


def _simulated(findings: list[finding.Finding], as_json: bool) -> int:
    if as_json:
        output.data(finding.as_data(findings))
    else:
        finding.show(findings)
    return worst(one.state for one in findings).exit_code


def _applied(
    roles: identity.Roles, accounts: list[service_accounts.ServiceAccount], irsa: bool, dry_run: bool, as_json: bool
) -> int:
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
    return 1 if (dry_run and lines) or worst(one.state for one in findings) is State.FAIL else 0
