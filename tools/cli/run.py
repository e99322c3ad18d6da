"""Train a cell on this machine, its pods as local processes.

The cell, or the PyTorchJob or TrainJob of a file, is rendered exactly as for a cluster. Its pods start with the
environment that the operator or Trainer would inject. Run the same command again to continue; a finished run is
reported as finished. With --name, one cell has many runs side by side.

Images are not used. The command of a script of your own starts in the working directory, with the programs of
this machine and as you: run only manifests that you trust.

\b
Exit codes: 0 trained, 1 the run failed, 2 bad input, 130 after Ctrl-C.
Examples:
  yard run overlays/cpu/llama-tiny
  yard run cpu/llama-tiny --set train.steps=800 --set train.learning_rate=0.001
  yard run cpu/llama-tiny --nodes 1 --nproc 2 --fresh
  yard run cpu/llama-tiny --name lr-1e-3 --set train.learning_rate=1e-3
  yard run cpu/llama-tiny --dry-run
  yard run -f job.yaml
  yard run cpu/llama-tiny-lora --show-example
"""

import click

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.local import job as local_job
from tools.local import run


@click.command(help=__doc__, short_help="train a cell on this machine")
@_knobs.target
@_knobs.options
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Use port N for the rendezvous.")
@click.option("--fresh", is_flag=True, help="Start over; the run moves to a trash for 7 days.")
@click.option("--dry-run", is_flag=True, help="Print what would start; start nothing.")
@click.option("--show-example", is_flag=True, help="Print one fine-tuning example, with the tokens that are learned.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan or the final report as JSON.")
def command(
    cell: str | None,
    file: str | None,
    knobs: Knobs,
    port: int | None,
    fresh: bool,
    dry_run: bool,
    show_example: bool,
    as_json: bool,
) -> None:
    manifests = cells_knobs.rendered(cell, file, knobs)
    target = (manifests.source,) if cell is not None else ("-f", str(file))
    job = local_job.ready(manifests, target, knobs, port, plan_only=dry_run or show_example)
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
