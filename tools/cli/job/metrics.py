"""Print the metrics of a job or a log as JSON lines or CSV, one row for each logged step."""

from dataclasses import asdict

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
        output.csv_table(rows, [name for name in COLUMNS if any(name in row for row in rows)])
        return 0
    for row in rows:
        output.data(row, indent=None)
    return 0


def _print_graphs(nodes: list[Summary], as_csv: bool, as_json: bool) -> int:
    total = compile_log.together(nodes)
    if as_csv:
        output.csv_table(map(asdict, nodes), list(asdict(total)))
    else:
        line = f"{total.line()} ({output.count(len(nodes), 'summary', 'summaries')})"
        output.answer({**asdict(total), "nodes": [asdict(node) for node in nodes]}, [line], as_json)
    return 0 if total.good else 1
