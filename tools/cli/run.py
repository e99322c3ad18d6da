"""Train a cell on this machine, its pods as local processes."""

import click

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.local import job as local_job
from tools.local import run


@_knobs.knobs
def command(
    cell: str | None,
    file: str | None,
    knobs: Knobs,
    port: int | None,
    fresh: bool,
    dry_run: bool,
    show_example: bool,
    as_json: bool,
) -> int:
    manifests = cells_knobs.rendered(cell, file, knobs)
    target = (manifests.source,) if cell is not None else ("-f", str(file))
    job = local_job.ready(manifests, target, knobs, port, plan_only=dry_run or show_example)
    if dry_run:
        run.show_plan(job, as_json)
        return 0
    if show_example:
        if as_json:
            raise click.UsageError("--show-example cannot be combined with --json")
        run.show_example(job)
        return 0
    return run.run(job, fresh, as_json)
