"""Measure all-reduce between a cell's pods, and check sums, network and bandwidth.

base/services/nccl-test runs in the cell's own pods: same nodes, devices, EFA interfaces, environment, image.
The check fails if a sum is wrong, if NCCL does not use EFA although the pods request it, or if the bus
bandwidth is far below the published measurement of the same machines at the same message size
(tools/facts/bandwidth.py).

\b
Examples:
  yard job nccl-test overlays/p5/llama-3-1-8b -n team-a
  yard job nccl-test cpu/llama-tiny --keep
  yard job nccl-test p5/llama-3-1-8b --log perf.txt     check a log, also one of nccl-tests itself

\b
Exit codes: 0 every check passes, 1 one fails, 3 one is unknown.
"""

from pathlib import Path

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import worst
from tools.job import nccl_test, submit
from tools.job.snapshot import lookup
from tools.kube.kubectl import Kubectl
from tools.workload import kinds

SUMS = {True: "right", False: "WRONG", None: "sums not checked"}


@click.command(name="nccl-test", help=__doc__, short_help="all-reduce between a cell's pods")
@click.argument("cell")
@_options.cluster
@click.option("--log", "recorded", type=click.Path(path_type=Path), metavar="FILE", help="Check this log.")
@click.option("--keep", is_flag=True, help="Keep the job when it has ended.")
@_options.timeout("How long the test may take.")
@_options.as_json
def command(kubectl: Kubectl, cell: str, recorded: Path | None, keep: bool, timeout: int, as_json: bool) -> None:
    manifests = nccl_test.manifests(cell)
    job = kinds.job_of(manifests)
    if recorded:
        try:
            lines = recorded.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as problem:
            raise UserError(f"{recorded}: {problem.strerror}") from None
    else:
        here = lookup.in_namespace(kubectl)
        submit.check(here, manifests, output.note)
        nccl_test.check_absent(here, manifests)
        try:
            lines = nccl_test.run(here, manifests, timeout, output.note)
        finally:
            if not keep:
                nccl_test.remove(here, manifests)
    verdicts = list(nccl_test.check(job, lines))
    rows = nccl_test.rows(lines)
    if as_json:
        facts = {"job": job.name, "rows": [vars(row) for row in rows]}
        output.data({**facts, "verdicts": [verdict.as_dict() for verdict in verdicts]})
    else:
        for row in rows:
            output.line(f"{row.size:>14,} bytes  {row.bus:>8.2f} GB/s  {SUMS[row.right]}")
        for verdict in verdicts:
            output.verdict(verdict)
    raise click.exceptions.Exit(worst(verdict.state for verdict in verdicts).exit_code)
