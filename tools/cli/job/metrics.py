"""Print the metrics of a job or a log as JSON lines or CSV, one row for each logged step.

SOURCE is a job, a cell, a run directory, a metrics.jsonl, a log file (also gzip'd), or - for standard input.
These logs are read: trainyard's, FSDP of awsome-distributed-training (samples/s), aws-neuron-samples
(step_loss, throughput), transformers.Trainer, torchtitan, Megatron-LM, DeepSpeed, NeMo, Lightning, nanoGPT,
and loggers that write JSON. A value that a trainer does not print is missing, and values keep their meaning:
torchtitan's tokens/s are those of one device. Evaluations are left out.

For a log of neuron_parallel_compile the command prints how many graphs were compiled, over all nodes.

\b
Examples:
  yard job metrics cpu-llama-tiny-train
  yard job metrics local/runs/cpu-llama-tiny-train --csv
  yard job metrics bert.log
  kubectl logs trn1-bert-large-train-graphs-worker-0 | yard job metrics -

\b
Exit codes: 0 printed, 1 some graphs were not compiled, 3 no metrics found.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job.metrics import sources
from tools.job.metrics.series import COLUMNS
from tools.kube.kubectl import Kubectl
from training.neuron import compile_log
from training.neuron.compile_log import Summary


@click.command(help=__doc__, short_help="metrics as JSON lines or CSV")
@click.argument("source", required=False)
@_options.cluster
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines (the default), or the graphs as JSON.")
def command(kubectl: Kubectl, source: str | None, as_csv: bool, as_json: bool) -> None:
    run = sources.read(kubectl, source)
    if graphs := compile_log.summaries(run.compiler):
        _print_graphs(graphs, as_csv, as_json)
        return
    if not run.records:
        raise UserError(f"{run.name}: the summary of neuron_parallel_compile is incomplete", code=3)
    rows = [record.as_dict() for record in run.records]
    if as_csv:
        _print_csv(rows, [name for name in COLUMNS if any(name in row for row in rows)])
        return
    for row in rows:
        output.data(row, indent=None)


def _print_graphs(nodes: list[Summary], as_csv: bool, as_json: bool) -> None:
    total = compile_log.together(nodes)
    if as_csv:
        _print_csv([asdict(node) for node in nodes], list(asdict(total)))
    elif as_json:
        output.data({**asdict(total), "nodes": [asdict(node) for node in nodes]})
    else:
        output.line(f"{total.line()} ({output.count(len(nodes), 'summary', 'summaries')})")
    if not total.good:
        raise click.exceptions.Exit(1)


def _print_csv(rows: Sequence[dict[str, Any]], columns: list[str]) -> None:
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    output.block(table.getvalue())
