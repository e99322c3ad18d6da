"""Train a cell on this machine, its pods as local processes.

The cell is rendered as a cluster would be given it, and its pods are started with exactly the environment
that the training operator would inject. Run again to continue; a finished run says so.

\b
Examples:
  yard run overlays/cpu/llama-tiny
  yard run cpu/llama-tiny --set train.steps=800 --set train.learning_rate=0.001
  yard run cpu/llama-tiny --pods 1 --nproc 2 --fresh
  yard run cpu/llama-tiny --dry-run
  yard run cpu/llama-tiny-lora --show-example
"""

from __future__ import annotations

import click

from tools.core import output, repo
from tools.local import job as local_job
from tools.local import run


@click.command(help=__doc__, short_help="train a cell on this machine")
@click.argument("cell")
@click.option(
    "--pods",
    type=click.IntRange(1),
    metavar="N",
    help="Start N pods (replicas, elastic minimum and maximum).",
)
@click.option(
    "--nproc", type=click.IntRange(1), metavar="N", help="Start N processes in each pod (nprocPerNode)."
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the configuration."
)
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Let the pods meet at port N.")
@click.option("--fresh", is_flag=True, help="Remove the run first, its checkpoints included.")
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@click.option(
    "--show-example", is_flag=True, help="Print one example of fine-tuning and what of it is learned."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan or the final report as JSON.")
def command(
    cell: str,
    pods: int | None,
    nproc: int | None,
    settings: tuple[str, ...],
    port: int | None,
    fresh: bool,
    dry_run: bool,
    show_example: bool,
    as_json: bool,
) -> None:
    change = local_job.Change(pods, nproc, port, settings)
    job = local_job.ready(local_job.render(cell, output.note), change, repo.local(), repo.root())
    if dry_run:
        run.show_plan(job, as_json)
        return
    if show_example:
        if as_json:
            raise click.UsageError("an example is shown to people: --show-example goes without --json")
        run.show_example(job)
        return
    code = run.run(job, fresh, as_json)
    if code:
        raise click.exceptions.Exit(code)
