"""Check runs, cluster facts and Secrets in git before a push, offline.

Refused are: a run's file that was changed after its commit; a run that is not pinned, is of another
repository, has other rights than the team's, or whose finished job would be deleted and run again; a ${NAME}
of the platform that cluster.env does not set; a Secret in plain text; an encrypted Secret that Flux would
apply as ciphertext. With --live a changed run is allowed if the cluster has not created its job yet.

\b
Examples:
  yard cluster run check
  yard cluster run check --cluster gpu --live

\b
Exit codes: 0 passed, 1 a check failed, 3 no check failed, but some results are unknown.
"""

import click

from tools.cells import kustomize
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict, worst
from tools.gitops import check, flux_objects, git_secrets, live


@click.command(name="check", help=__doc__)
@click.option("--cluster", metavar="NAME", help="A directory under clusters/. Default: all.")
@click.option("--live", "ask", is_flag=True, help="Read the state of the cluster too. Needs --cluster.")
@click.option("--context", metavar="NAME", help="With --live: the context of the kubeconfig.")
@click.option("-v", "--verbose", is_flag=True, help="Print passed checks too.")
@click.option("--json", "as_json", is_flag=True, help="Print all verdicts as JSON.")
def command(cluster: str | None, ask: bool, context: str | None, verbose: bool, as_json: bool) -> None:
    if ask and cluster is None:
        raise UserError("--live needs one cluster", "add --cluster NAME")
    if context and not ask:
        raise UserError("--context needs --live", "add --live")
    root = repo.project()
    renderer = kustomize.ensure(repo.root(), output.note)
    found: list[Verdict] = []
    for name in [cluster] if cluster else flux_objects.names(root):
        directory = flux_objects.find(root, name)
        team = flux_objects.team(directory)
        runs = live.look(context, team, check.run_files(root, directory)) if ask else None
        by_name = None if runs is None else {run.name: run for run in runs}
        found += check.check(root, directory, renderer, by_name)
    found += git_secrets.check(root, renderer)
    if as_json:
        output.data([verdict.as_dict() for verdict in found])
    else:
        _show(found, verbose)
    raise click.exceptions.Exit(worst(verdict.state for verdict in found).exit_code)


def _show(found: list[Verdict], verbose: bool) -> None:
    for verdict in found:
        if verbose or verdict.state is not State.PASS:
            output.verdict(verdict)
    states = [verdict.state for verdict in found]
    failed, unknown = states.count(State.FAIL), states.count(State.CANNOT_TELL)
    output.line(f"{failed} failed, {unknown} unknown, {len(states) - failed - unknown} passed")
