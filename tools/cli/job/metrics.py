"""Print a job's metrics as JSON lines or CSV, one row for each logged step.

SOURCE is a job, a cell, a run directory or a log file (also gzip'd). Read are our own metrics.jsonl and log
lines, and the logs of other trainers: FSDP's of awsome-distributed-training (samples/s), those of
aws-neuron-samples (step_loss, throughput), transformers.Trainer's dicts, torchtitan, Megatron-LM, DeepSpeed,
NeMo and Lightning, nanoGPT, and loggers that write JSON. What a trainer does not print is left out; what it
prints stays as it is (torchtitan's tokens/s are those of one device). Evaluations are no steps.

\b
Examples:
  yard job metrics cpu-llama-tiny-train
  yard job metrics local/runs/cpu-llama-tiny-train --csv
  kubectl logs bert-worker-0 > bert.log; yard job metrics bert.log

\b
Exit codes: 0 printed, 3 no metrics were found.
"""

from __future__ import annotations

import csv
import json
import sys

import click

from tools.cli.job import _options
from tools.core import output
from tools.job.metrics import sources
from tools.job.metrics.series import COLUMNS
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="metrics as JSON lines or CSV")
@click.argument("source", required=False)
@_options.cluster
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
@click.option("--json", "_as_json", is_flag=True, help="JSON lines: the default.")
def command(kubectl: Kubectl, source: str | None, as_csv: bool, _as_json: bool) -> None:
    run = sources.records(kubectl, source)
    if not as_csv:
        for record in run.records:
            output.line(json.dumps(record.as_dict()))
        return
    rows = [record.as_dict() for record in run.records]
    used = [name for name in COLUMNS if any(name in row for row in rows)]
    writer = csv.DictWriter(sys.stdout, used, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
