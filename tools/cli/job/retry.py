"""Try a failed job again, where that can help; it goes on from its newest checkpoint.

The cause decides, as `yard job why` names it. What would fail in the same way again (a wrong key, data, a
missing program) is refused with its remedy. A lost node or peer, a hang and the like are tried again as they
are; out of memory with half the micro batch, and the global batch stays. Each try is written into the job's
annotation trainyard/attempts, with what it changed.

\b
Examples:
  yard job retry cpu-llama-tiny-train
  yard job retry p5-llama-3-1-8b-train --most 5
  yard job retry --dry-run

\b
Exit codes: 0 it was applied again, 1 it was refused, 3 it cannot be told whether it fails.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from tools.cli.job import _options
from tools.core import output
from tools.job import retry
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import collect, lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="try a failed job again, by the class of its failure")
@_options.job
@_options.cluster
@click.option(
    "--most", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
    help="Tries in all, beyond the first.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, most: int, dry_run: bool, as_json: bool) -> None:
    seen = collect.collect(kubectl, lookup.job_name(kubectl, job))
    here = Kubectl(kubectl.context, seen.namespace)
    planned = retry.plan(here, seen, explain(seen), most)
    last = planned.last
    output.note(f"{seen.namespace}/{seen.name} ({seen.uid}) failed of {last.cause}: {last.evidence}")
    output.note(f"try {len(planned.ledger)} of {most} changes {last.changed}")
    applied = [] if dry_run else retry.carry_out(here, seen, planned, output.note)
    attempts = [asdict(one) for one in planned.ledger]
    if as_json:
        objects = [{"kind": one.kind, "name": one.name, "uid": one.uid} for one in applied]
        facts = {"job": seen.name, "namespace": here.namespace, "cause": last.cause, "changed": last.changed}
        output.data({**facts, "applied": not dry_run, "objects": objects, "attempts": attempts})
        return
    for one in applied:
        output.line(f"{here.namespace}/{one.kind}/{one.name} {one.uid}")
    output.line("would be tried again" if dry_run else f"next: yard job status {seen.name} --watch")
