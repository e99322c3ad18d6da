"""Plot loss and speed over steps, for one run or several over each other, in the terminal."""

import shutil
from typing import Any

import click

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job.metrics import plot, series, sources
from tools.job.metrics.series import RunMetrics
from tools.kube import Kubectl

WIDEST = 110  # columns of a chart


@_options.cluster
@click.option("--key", "keys", multiple=True, type=click.Choice(list(plot.LABELS)), help="Only these curves.")
def command(kubectl: Kubectl, source: tuple[str, ...], keys: tuple[str, ...], as_json: bool) -> None:
    runs = [sources.read(kubectl, one) for one in source or [None]]
    wanted = [key for key in plot.known(runs) if not keys or key in keys]
    if not wanted:
        raise UserError("no run has a step and a value to plot", code=3)
    if as_json:
        output.data({"runs": [_points(run, wanted) for run in runs]})
    else:
        width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
        for line in (line for key in wanted for line in plot.text(runs, key, width)):
            output.line(line)


def _points(run: RunMetrics, keys: list[str]) -> dict[str, Any]:
    curves = {key: list(run.curve(key)) for key in keys}
    return {"name": run.name, "curves": curves, "restarts": [vars(gap) for gap in series.gaps(run.records)]}
