"""Write a run's file: a cell at a commit with the digest of its image, from which Flux creates a job once."""

from typing import NoReturn

import click

from tools.cells import kustomize
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.core import State, git, output, repo
from tools.gitops import new_run
from tools.gitops.render import uncommitted
from tools.gitops.run_file import FOLDERS


@_knobs.knobs
def command(cell: str, cluster: str, knobs: Knobs, commit: str, allow_dirty: bool) -> None:
    renderer = kustomize.ensure(repo.root(), output.note)
    made = new_run.make(repo.project(), new_run.Wanted(cell, cluster, commit, knobs), renderer)
    difference = uncommitted(repo.project(), made.run, made.rendered, renderer)
    if difference:
        output.block(difference.rstrip())
    if difference and not allow_dirty:
        hint = "commit the changes, choose their commit with --commit, or add --allow-dirty"
        _refuse(made, f"{made.run.cell} differs from commit {made.run.commit[:12]} in the working tree", hint)
    failed = made.failed()
    for verdict in failed:
        output.verdict(verdict)
    if failed:
        _refuse(made, f"{output.count(len(failed), 'check')} failed")
    new_run.write(made)
    _report(made, commit)


def _refuse(made: new_run.Made, why: str, hint: str | None = None) -> NoReturn:
    output.error(f"{repo.shown(made.path)} was not written: {why}", hint)
    raise click.exceptions.Exit(1)


def _report(made: new_run.Made, asked: str) -> None:
    path = repo.shown(made.path)
    output.line(f"written: {path}")
    output.line(f"  job {made.run.job}, from commit {made.run.commit[:12]}")
    for verdict in made.evaluation.of(State.CANNOT_TELL):
        output.line(f"  unknown to preflight: {verdict.summary}")
    for verdict in made.evaluation.of(State.WARN):
        output.line(f"  preflight warns: {verdict.summary}")
    if made.strange:
        output.line(f"  its pods would wait: no node group in cluster.env has {' or '.join(made.strange)}")
    changed = git.changed(repo.project(), *FOLDERS) if asked == "HEAD" else []
    if changed:
        more = " ..." if changed[3:] else ""
        output.line(f"  not in the run, because not committed: {', '.join(changed[:3])}{more}")
    if not git.is_pushed(repo.project(), made.run.commit):
        output.line("  no remote branch in this clone has the commit; push it, so that Flux can fetch it")
    output.line(f"to start the run: git add {path} && git commit -m 'Run {made.path.stem}' && git push")
