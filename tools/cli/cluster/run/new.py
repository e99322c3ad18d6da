"""Write a run's file: a cell at a commit with the digest of its image, from which Flux creates a job once.

The cell is rendered at that commit as Flux renders it and checked by preflight; if a check fails, no file is
written. A cell with uncommitted changes is refused, with the difference. The run starts when its file is
committed and pushed. Each run has its own file. The default name is the next free number. A name can be used
only once, because checkpoints are stored under the job's name.

\b
Examples:
  yard cluster run new overlays/cpu/llama-tiny --cluster cpu-demo --image sha256:<64 digits>
  yard cluster run new p5/llama-3-1-8b --cluster gpu --feature kueue --name lr-3e-4 \\
    --image 111122223333.dkr.ecr.us-west-2.amazonaws.com/trainyard/trainer-cuda@sha256:<64 digits>

\b
Exit codes: 0 written, 1 preflight failed or the cell has uncommitted changes, 2 invalid input."""

from __future__ import annotations

import click

from tools.cells import kustomize
from tools.core import output, repo
from tools.core.verdict import State
from tools.gitops import git, new_run
from tools.gitops.render import uncommitted
from tools.gitops.run_file import FOLDERS


@click.command(name="new", help=__doc__)
@click.argument("cell")
@click.option("--cluster", required=True, metavar="NAME", help="A directory under clusters/.")
@click.option("--name", "suffix", metavar="NAME", help="The end of the run's name. Default: r1, r2, ...")
@click.option("--commit", default="HEAD", show_default=True, help="The commit of the cell.")
@click.option("--image", metavar="[NAME@]DIGEST", help="The trainer's image with its digest.")
@click.option("--feature", "features", multiple=True, metavar="NAME", help="A Component of overlays/feature.")
def command(
    cell: str, cluster: str, suffix: str | None, commit: str, image: str | None, features: tuple[str, ...]
) -> None:
    root = repo.project()
    wanted = new_run.Wanted(cell, cluster, suffix, commit, image, features)
    renderer = kustomize.ensure(repo.root(), output.note)
    made = new_run.make(root, wanted, renderer)
    if commit == "HEAD":
        _refuse_uncommitted(made, renderer)
    failed = made.evaluation.of(State.FAIL)
    if failed:
        for verdict in failed:
            output.verdict(verdict)
        count = output.count(len(failed), "check")
        output.error(f"{repo.shown(made.path)} was not written: {count} of preflight failed")
        raise click.exceptions.Exit(1)
    new_run.write(made)
    _report(made, commit)


def _refuse_uncommitted(made: new_run.Made, renderer: kustomize.Renderer) -> None:
    """End with the difference where the cell of the working tree is not the one that the run would train."""
    difference = uncommitted(repo.project(), made.cell, made.commit, renderer)
    if difference:
        output.block(difference.rstrip())
        message = f"{repo.shown(made.path)} was not written: {made.cell} has changes that are not committed"
        output.error(message, "commit the changes, or choose a --commit")
        raise click.exceptions.Exit(1)


def _report(made: new_run.Made, asked: str) -> None:
    path = repo.shown(made.path)
    output.line(f"written: {path}")
    output.line(f"  job {made.job}, from commit {made.commit[:12]}")
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
    if not git.is_pushed(repo.project(), made.commit):
        output.line("  no remote branch in this clone has the commit; push it, so that Flux can fetch it")
    output.line(f"to start the run: git add {path} && git commit -m 'Run {made.path.stem}' && git push")
