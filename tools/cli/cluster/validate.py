"""Judge whether a cluster has all that a job needs, by what nodes advertise and controllers serve.

Nodes, devices and EFA against the table of machines, the operator's API and webhook, DNS, FSx, the team's
namespace and claim, health agents, room for pods, your rights, and whether a job would be taken. --fix makes
what can be made from here, and looks again.

\b
Examples:
  yard cluster validate gpu
  yard cluster validate gpu --context gpu --fix
  yard cluster validate gpu --save evidence/
  yard cluster validate gpu --from evidence/

\b
Exit codes: 0 good (warnings too), 1 something is missing, 3 not everything could be seen.
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli.cluster import _options
from tools.cluster import finding, validate
from tools.cluster import state as kube
from tools.cluster.finding import Finding
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="has the cluster all that a job needs")
@_options.cluster
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option("--fix", is_flag=True, help="Make what can be made, then look again.")
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="A kept snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the snapshot.")
@_options.as_json
def command(
    spec: Spec, context: str | None, fix: bool, recorded: Path | None, keep: Path | None, as_json: bool
) -> None:
    if recorded and fix:
        raise UserError("a kept snapshot cannot be fixed", "leave out --from or --fix")
    kubectl = None if recorded else Kubectl(context)
    findings = _look(spec, kubectl, recorded, keep)
    if fix and kubectl:
        findings = _fix(spec, kubectl, findings)
    level = finding.worst(findings)
    if as_json:
        output.data({"verdict": level.value, "findings": finding.as_data(findings)})
    else:
        finding.show(findings)
    raise click.exceptions.Exit(finding.exit_code(level))


def _look(spec: Spec, kubectl: Kubectl | None, recorded: Path | None, keep: Path | None) -> list[Finding]:
    state = kube.collect(kubectl) if kubectl else kube.load(recorded or Path())
    if keep:
        state.save(keep)
    return validate.judge(spec, state) + (validate.ask(kubectl, spec) if kubectl else [])


def _fix(spec: Spec, kubectl: Kubectl, findings: list[Finding]) -> list[Finding]:
    """Make each change and say what came of it; return what is found afterwards."""
    todo = validate.fixes(spec, findings)
    if not todo:
        output.note("nothing that can be fixed from here")
        return findings
    for one in todo:
        reason = validate.carry_out(kubectl, one)
        output.note(f"NOT fixed: {one.line}: {reason}" if reason else f"changed: {one.line}")
    after = _look(spec, kubectl, None, None)
    for one in validate.fixes(spec, after):
        output.note(f"still so: {one.line}")
    return after
