"""Say what a training log says: graphs compiled and failed, or else the metrics of its steps.

LOG is a file (- for standard input). A log of neuron_parallel_compile has a summary for each node, which are
added up; every other log is read as `yard job metrics` reads it.

\b
Examples:
  kubectl logs trn1-bert-large-train-graphs-worker-0 | yard metrics -
  yard metrics bert.log

\b
Exit codes: 0 every graph is compiled, or metrics were printed; 1 some graphs are not; 3 the log has neither.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from tools.core import output
from tools.core.errors import UserError
from tools.job.metrics import sources
from training.neuron import compile_log


@click.command(help=__doc__, short_help="graphs compiled, or metrics, from a log")
@click.argument("log")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(log: str, as_json: bool) -> None:
    text, source = _read(log)
    found = compile_log.summaries(text.splitlines())
    if not found:
        for record in sources.read(text, source):
            output.line(json.dumps(record.as_dict()))
        return
    total = compile_log.together(found)
    if as_json:
        output.data({**asdict(total), "nodes": [asdict(one) for one in found]})
    else:
        output.line(f"{total.line()} ({output.count(len(found), 'summary', 'summaries')})")
    if not total.good:
        raise click.exceptions.Exit(1)


def _read(log: str) -> tuple[str, str]:
    if log == "-":
        return sys.stdin.read(), "standard input"
    try:
        return Path(log).read_text(encoding="utf-8", errors="replace"), log
    except OSError as problem:
        raise UserError(f"{log}: {problem.strerror}") from None
