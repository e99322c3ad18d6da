"""Train a cell on this machine, its pods as local processes.

The cell is rendered exactly as for a cluster. Its pods start with the environment that the training operator
would inject. Run the same command again to continue; a finished run is reported as finished.

\b
Exit codes: 0 trained, 1 the run failed, 2 bad input, 130 after Ctrl-C.
Examples:
  yard run overlays/cpu/llama-tiny
  yard run cpu/llama-tiny --set train.steps=800 --set train.learning_rate=0.001
  yard run cpu/llama-tiny --pods 1 --nproc 2 --fresh
  yard run cpu/llama-tiny --dry-run
  yard run cpu/llama-tiny-lora --show-example
"""

from __future__ import annotations

import click

from tools.cells import locate
from tools.core import repo
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
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Use port N for the rendezvous.")
@click.option("--fresh", is_flag=True, help="Delete the run first, with its checkpoints.")
@click.option("--dry-run", is_flag=True, help="Print what would start; start nothing.")
@click.option(
    "--show-example", is_flag=True, help="Print one fine-tuning example, with the tokens that are learned."
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
    manifests = locate.rendered(cell)
    job = local_job.ready(manifests, change, repo.local(), repo.root(), plan_only=dry_run or show_example)
    if dry_run:
        run.show_plan(job, as_json)
        return
    if show_example:
        if as_json:
            raise click.UsageError("--show-example cannot be combined with --json")
        run.show_example(job)
        return
    code = run.run(job, fresh, as_json)
    if code:
        raise click.exceptions.Exit(code)
