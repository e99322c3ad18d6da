"""Plot loss and speed over steps, for one run or several over each other, in the terminal or as SVG."""

import shutil
from pathlib import Path
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
def command(kubectl: Kubectl, source: tuple[str, ...], keys: tuple[str, ...], svg: Path | None, as_json: bool) -> None:
    if svg is not None and as_json:
        raise UserError("--svg writes a picture and --json prints points: give one of them")
    runs = [sources.read(kubectl, one) for one in source or [None]]
    wanted = [key for key in plot.known(runs) if not keys or key in keys]
    if not wanted:
        raise UserError("no run has a step and a value to plot", code=3)
    if as_json:
        output.data({"runs": [_points(run, wanted) for run in runs]})
    elif svg is not None:
        _write(svg, plot.svg(runs, wanted))
    else:
        width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
        for line in (line for key in wanted for line in plot.text(runs, key, width)):
            output.line(line)


def _points(run: RunMetrics, keys: list[str]) -> dict[str, Any]:
    curves = {key: list(series.curve(run.records, key)) for key in keys}
    return {"name": run.name, "curves": curves, "restarts": [vars(gap) for gap in series.gaps(run.records)]}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}") from None
    output.line(f"{path}: {len(text.encode()):,} bytes")
