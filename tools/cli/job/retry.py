"""Retry a failed job if that can help. The run continues from its newest checkpoint.

The cause that `yard job why` names decides. A cause that would fail in the same way again, such as a wrong
key, bad data or a missing program, is refused with its fix. After a lost node or peer, a hang and the like
the job is retried unchanged; after out of memory with half the micro batch and the same global batch. The
job's annotation trainyard/attempts records each attempt and what it changed.

\b
Examples:
  yard job retry cpu-llama-tiny-train
  yard job retry p5-llama-3-1-8b-train --most 5
  yard job retry --dry-run

\b
Exit codes: 0 applied again, 1 refused, 3 unknown whether the job fails.
"""

from dataclasses import asdict

import click

from tools.cli.job import _options
from tools.core import output
from tools.job import retry
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import collect
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="retry a failed job, depending on the cause")
@_options.job
@_options.cluster
@click.option(
    "--most", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
    help="Attempts in total, after the first.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, most: int, dry_run: bool, as_json: bool) -> None:
    here, seen = collect.find(kubectl, job)
    planned = retry.plan(here, seen, explain(seen), most)
    last = planned.last
    output.note(f"{seen.namespace}/{seen.name} ({seen.uid}) failed: {last.cause}: {last.evidence}")
    output.note(f"attempt {len(planned.ledger)} of {most} changes {last.changed}")
    applied = [] if dry_run else retry.carry_out(here, seen, planned.objects, output.note)
    if as_json:
        facts = {"job": seen.name, "namespace": here.namespace, "cause": last.cause, "changed": last.changed}
        objects = [vars(one) for one in applied]
        attempts = [asdict(one) for one in planned.ledger]
        output.data({**facts, "applied": not dry_run, "objects": objects, "attempts": attempts})
        return
    for one in applied:
        output.line(f"{here.namespace}/{one}")
    output.line("would be retried" if dry_run else f"next: yard job status {seen.name} --watch")
