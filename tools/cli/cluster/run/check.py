"""Judge runs, cluster facts and Secrets in git before they are pushed, offline.

Refused are: a run's file that was changed after it was committed, for its job runs or ran; a run that is not
pinned, or whose finished job would be deleted and run again; a ${NAME} of the platform that is no fact; a
Secret in plain text, and an encrypted one that Flux would apply as ciphertext. With --live the current
cluster is asked too: a changed run whose job was never made is then allowed.

\b
Examples:
  yard cluster run check
  yard cluster run check --cluster gpu --live

\b
Exit codes: 0 PASS, 1 anything failed, 3 nothing failed and something cannot be told.
"""

from __future__ import annotations

import click

from tools.cells import kustomize
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.gitops import check, flux_objects, live
from tools.kube.kubectl import Kubectl


@click.command(name="check", help=__doc__, short_help="judge runs and Secrets before they are pushed")
@click.option("--cluster", metavar="NAME", help="A directory under clusters/; all without it.")
@click.option("--live", "ask", is_flag=True, help="Ask the cluster too; needs --cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context, with --live.")
@click.option("-v", "--verbose", is_flag=True, help="Print also what passed.")
@click.option("--json", "as_json", is_flag=True, help="Print all verdicts as JSON.")
def command(cluster: str | None, ask: bool, context: str | None, verbose: bool, as_json: bool) -> None:
    if ask and cluster is None:
        raise UserError("--live asks one cluster", "give --cluster NAME too")
    if context and not ask:
        raise UserError("--context is for --live", "add --live")
    root = repo.root()
    renderer = kustomize.ensure(root, output.note)
    clusters = (
        [flux_objects.find(root, cluster)]
        if cluster
        else [flux_objects.find(root, one) for one in flux_objects.names(root)]
    )
    found: list[Verdict] = []
    for one in clusters:
        runs = live.look(Kubectl(context), check.run_files(root, one)) if ask else None
        found += check.check(
            root, one, renderer, {run.name: run for run in runs} if runs is not None else None
        )
    found += check.check_secrets(root)
    if as_json:
        output.data([verdict.as_dict() for verdict in found])
    else:
        _show(found, verbose)
    states = {verdict.state for verdict in found}
    worst = next((one for one in (State.FAIL, State.CANNOT_TELL) if one in states), State.PASS)
    if worst.exit_code:
        raise click.exceptions.Exit(worst.exit_code)


def _show(found: list[Verdict], verbose: bool) -> None:
    for verdict in found:
        if verbose or verdict.state is not State.PASS:
            output.verdict(verdict)
    states = [verdict.state for verdict in found]
    failed, unclear = states.count(State.FAIL), states.count(State.CANNOT_TELL)
    output.line(f"{failed} failed, {unclear} cannot be told, {len(states) - failed - unclear} passed")
