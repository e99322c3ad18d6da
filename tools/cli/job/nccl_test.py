"""Measure all-reduce between the pods that a cell would train with, and judge it.

base/services/nccl-test runs in the cell's own pods: same nodes, devices, EFA interfaces, environment, image.
The sums must be right, NCCL must go over EFA where the pods ask for it, and the bus bandwidth is held against
what was measured with the same machines at the same message size (tools/facts/bandwidth.py), where that is
known.

\b
Examples:
  yard job nccl-test overlays/p5/llama-3-1-8b -n team-a
  yard job nccl-test cpu/llama-tiny --keep
  yard job nccl-test p5/llama-3-1-8b --log perf.txt     judge a log, also one of nccl-tests itself

\b
Exit codes: 0 all is good, 1 something is not, 3 something cannot be told.
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job import checks, nccl_test, submit
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import name_of

SECONDS = 1800
SUMS = {True: "right", False: "WRONG", None: "sums not looked at"}


@click.command(name="nccl-test", help=__doc__, short_help="all-reduce between a cell's pods, judged")
@click.argument("cell")
@_options.cluster
@click.option("--log", "recorded", type=click.Path(path_type=Path), metavar="FILE", help="Judge this log.")
@click.option("--keep", is_flag=True, help="Leave the job when it has ended.")
@click.option(
    "--timeout", type=click.IntRange(min=1), default=SECONDS, show_default=True, metavar="SECONDS",
    help="How long it may take.",
)  # fmt: skip
@_options.as_json
def command(
    kubectl: Kubectl, cell: str, recorded: Path | None, keep: bool, timeout: int, as_json: bool
) -> None:
    manifests = nccl_test.manifests(cell)
    job = manifests.job()
    if recorded:
        try:
            lines = recorded.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as problem:
            raise UserError(f"{recorded}: {problem.strerror}") from None
    else:
        here = Kubectl(kubectl.context, submit.namespace_of(kubectl))
        checks.check(here, manifests, output.note)
        nccl_test.check_absent(here, manifests)
        try:
            lines = nccl_test.run(here, manifests, timeout, output.note)
        finally:
            if not keep:
                nccl_test.remove(here, manifests)
    found = list(nccl_test.judge(job, lines))
    measured = [vars(row) for row in nccl_test.rows(lines)]
    if as_json:
        verdicts = [one.as_dict() for one in found]
        output.data({"job": name_of(job), "rows": measured, "verdicts": verdicts})
    else:
        for row in nccl_test.rows(lines):
            output.line(f"{row.size:>14,} bytes  {row.bus:>8.2f} GB/s  {SUMS[row.right]}")
        for one in found:
            output.verdict(one)
    state = next(
        (one for one in (State.FAIL, State.CANNOT_TELL) if any(v.state is one for v in found)), State.PASS
    )
    raise click.exceptions.Exit(state.exit_code)
