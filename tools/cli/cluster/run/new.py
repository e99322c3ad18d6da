"""Write a run's file: a cell at a commit, with its image's digest, for Flux to make once.

The cell is rendered at that commit as Flux renders it and judged by preflight; nothing is written where
anything fails. The run starts when the file is committed and pushed, and never again: another run is another
file. Its name is the next free number unless --name gives one; a name is used once, for the checkpoints lie
under the job's name.

\b
Examples:
  yard cluster run new overlays/cpu/llama-tiny --cluster cpu-demo --image sha256:<64 digits>
  yard cluster run new p5/llama-3-1-8b --cluster gpu --feature kueue --name lr-3e-4 \\
    --image 111122223333.dkr.ecr.us-west-2.amazonaws.com/trainyard/trainer-cuda@sha256:<64 digits>

\b
Exit codes: 0 written, 1 preflight fails, 2 something given is wrong."""

from __future__ import annotations

import click

from tools.cells import kustomize
from tools.core import output, repo
from tools.core.verdict import State
from tools.gitops import git, new_run
from tools.gitops.run_file import FOLDERS


@click.command(name="new", help=__doc__, short_help="write a run's file")
@click.argument("cell")
@click.option("--cluster", required=True, metavar="NAME", help="The directory under clusters/.")
@click.option("--name", "suffix", metavar="NAME", help="The end of the run's name; r1, r2, ... without it.")
@click.option(
    "--commit", default="HEAD", show_default=True, metavar="COMMIT", help="What the run is made of."
)
@click.option("--image", metavar="[NAME@]DIGEST", help="The trainer's image by its digest.")
@click.option("--feature", "features", multiple=True, metavar="NAME", help="A Component of overlays/feature.")
def command(
    cell: str, cluster: str, suffix: str | None, commit: str, image: str | None, features: tuple[str, ...]
) -> None:
    root = repo.root()
    wanted = new_run.Wanted(cell, cluster, suffix, commit, image, features)
    made = new_run.make(root, wanted, kustomize.ensure(root, output.note))
    failed = made.judgement.of(State.FAIL)
    if failed:
        for verdict in failed:
            output.verdict(verdict)
        count = output.count(len(failed), "verdict")
        output.error(f"{repo.shown(made.path)} was not written: {count} of preflight failed")
        raise click.exceptions.Exit(1)
    new_run.write(made)
    _say(made, commit)


def _say(made: new_run.Made, asked: str) -> None:
    path = repo.shown(made.path)
    output.line(f"written: {path}")
    output.line(f"  job {made.job}, from commit {made.commit[:12]}")
    for verdict in made.judgement.of(State.CANNOT_TELL):
        output.line(f"  preflight cannot tell: {verdict.summary}")
    if made.strange:
        output.line(f"  its pods would wait: no node group of cluster.env is {' or '.join(made.strange)}")
    changed = git.changed(repo.root(), *FOLDERS) if asked == "HEAD" else []
    if changed:
        more = " ..." if changed[3:] else ""
        output.line(f"  not in it, for it is not committed: {', '.join(changed[:3])}{more}")
    if not git.is_pushed(repo.root(), made.commit):
        output.line(
            "  the commit is on no remote branch that this clone knows of: Flux finds it when it is pushed"
        )
    output.line(f"it starts with: git add {path} && git commit -m 'Run {made.path.stem}' && git push")
