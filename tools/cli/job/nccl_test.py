"""Measure all-reduce between a cell's pods, and check sums, network and bandwidth."""

from pathlib import Path

from tools.cli.job import _options
from tools.core import UserError, output, worst
from tools.job import nccl_test, submit
from tools.job.snapshot import lookup
from tools.kube import Kubectl
from tools.workload import kinds

SUMS = {True: "right", False: "WRONG", None: "sums not checked"}


@_options.cluster
def command(kubectl: Kubectl, cell: str, recorded: Path | None, keep: bool, timeout: int, as_json: bool) -> int:
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
    return worst(verdict.state for verdict in verdicts).exit_code
