"""Print the metrics of a job or a log as JSON lines or CSV, one row for each logged step."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job.metrics import sources
from tools.job.metrics.series import COLUMNS
from tools.kube import Kubectl
from training.neuron import compile_log
from training.neuron.compile_log import Summary


@_options.cluster
def command(kubectl: Kubectl, source: str | None, as_csv: bool, as_json: bool) -> int:
    run = sources.read(kubectl, source)
    if graphs := compile_log.summaries(run.compiler):
        return _print_graphs(graphs, as_csv, as_json)
    if not run.records:
        raise UserError(f"{run.name}: the summary of neuron_parallel_compile is incomplete", code=3)
    rows = [record.as_dict() for record in run.records]
    if as_csv:
        _print_csv(rows, [name for name in COLUMNS if any(name in row for row in rows)])
        return 0
    for row in rows:
        output.data(row, indent=None)
    return 0


def _print_graphs(nodes: list[Summary], as_csv: bool, as_json: bool) -> int:
    total = compile_log.together(nodes)
    if as_csv:
        _print_csv([asdict(node) for node in nodes], list(asdict(total)))
    elif as_json:
        output.data({**asdict(total), "nodes": [asdict(node) for node in nodes]})
    else:
        output.line(f"{total.line()} ({output.count(len(nodes), 'summary', 'summaries')})")
    return 0 if total.good else 1


def _print_csv(rows: Sequence[dict[str, Any]], columns: list[str]) -> None:
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    output.block(table.getvalue())
