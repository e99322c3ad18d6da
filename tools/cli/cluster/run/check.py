"""Check runs, cluster facts and Secrets in git before a push, offline."""

from tools.cells import kustomize
from tools.core import State, UserError, Verdict, output, repo, worst
from tools.gitops import check, flux_objects, git_secrets, live


def command(cluster: str | None, ask: bool, context: str | None, verbose: bool, as_json: bool) -> int:
    if ask and cluster is None:
        raise UserError("--live needs one cluster", "add --cluster NAME")
    if context and not ask:
        raise UserError("--context needs --live", "add --live")
    root = repo.project()
    renderer = kustomize.ensure(repo.root(), output.note)
    found: list[Verdict] = []
    for name in [cluster] if cluster else flux_objects.names(root):
        directory = flux_objects.find(root, name)
        runs = live.look(context, flux_objects.team(directory), check.run_files(root, directory)) if ask else None
        by_name = None if runs is None else {run.name: run for run in runs}
        found += check.check(root, directory, renderer, by_name)
    found += git_secrets.check(root, renderer)
    if as_json:
        output.data([verdict.as_dict() for verdict in found])
    else:
        _show(found, verbose)
    return worst(verdict.state for verdict in found).exit_code


def _show(found: list[Verdict], verbose: bool) -> None:
    for verdict in found:
        if verbose or verdict.state is not State.PASS:
            output.verdict(verdict)
    states = [verdict.state for verdict in found]
    failed, unknown = states.count(State.FAIL), states.count(State.CANNOT_TELL)
    output.line(f"{failed} failed, {unknown} unknown, {len(states) - failed - unknown} passed")
