"""Train a cell on this machine, its pods as local processes."""

import click

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.local import job as local_job
from tools.local import run


@click.command()
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
