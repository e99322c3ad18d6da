"""Check whether a cluster has everything that a job needs: of CLUSTER, or of the current context.

Checked are nodes, devices and EFA against the table of instance types, the operator's API and webhook, DNS,
FSx, the team's namespace and claim, health agents, room for pods, your permissions, whether the API server
accepts a job, whether S3_BUCKET is versioned, and whether NetworkPolicies are enforced. For the last, two
small pods with the image of the debug pod try three ports in the team's namespace, for minutes at most, and
are removed. --fix makes the changes that it can, and checks again. Without CLUSTER, the namespace is that of
the context or of -n, and what only a cluster.env tells is CANNOT TELL (yard cluster init writes one).

\b
Examples:
  yard cluster validate                       the current context
  yard cluster validate -n team-a --context k3s
  yard cluster validate gpu
  yard cluster validate gpu --context gpu --fix
  yard cluster validate gpu --save evidence/
  yard cluster validate gpu --from evidence/

\b
Exit codes: 0 passed, also with warnings, 1 a check failed, 2 no such cluster, context or snapshot, 3 some
results are unknown.
"""

import functools
from pathlib import Path

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import bucket, finding, snapshot, validate
from tools.cluster.finding import Finding
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__)
@functools.partial(_options.cluster_or_context, both=True)
@click.option("--fix", is_flag=True, help="Make the changes that can be made, then check again.")
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="Read a saved snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Save the snapshot.")
@_options.as_json
def command(
    spec: Spec, session: Session, kubectl: Kubectl, fix: bool, recorded: Path | None, keep: Path | None, as_json: bool
) -> None:
    if recorded and fix:
        raise UserError("a saved snapshot cannot be fixed", "leave out --from or --fix")
    found = snapshot.load(recorded) if recorded else snapshot.collect(kubectl, spec.namespace)
    if keep:
        found.save(keep)
    findings = validate.check(spec, found) + ([] if recorded else validate.ask(kubectl, spec))
    if fix:
        findings = _fix(spec, kubectl, findings)
    findings += [] if recorded else bucket.check(session, spec)
    raise click.exceptions.Exit(finding.report(findings, as_json).exit_code)


def _fix(spec: Spec, kubectl: Kubectl, findings: list[Finding]) -> list[Finding]:
    changes = validate.fixes(spec, findings)
    if not changes:
        output.note("nothing to fix from here")
        return findings
    for change in changes:
        reason = validate.apply(kubectl, change)
        output.note(f"NOT fixed: {change.line}: {reason}" if reason else f"changed: {change.line}")
    after = validate.check(spec, snapshot.collect(kubectl, spec.namespace)) + validate.ask(kubectl, spec)
    for change in validate.fixes(spec, after):
        output.note(f"not in effect: {change.line}")
    return after
