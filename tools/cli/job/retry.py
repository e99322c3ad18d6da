"""Retry a failed job if that can help. The run continues from its newest checkpoint."""

from dataclasses import asdict

from tools.cli.job import _options
from tools.core import output
from tools.job import retry
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import collect
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str | None, most: int, dry_run: bool, as_json: bool) -> None:
    here, seen = collect.find(kubectl, job, around=True)
    planned = retry.plan(here, seen, explain(seen), most)
    last = planned.last
    output.note(f"{seen.namespace}/{seen.name} ({seen.uid}) failed: {last.cause}: {last.evidence}")
    output.note(f"attempt {len(planned.ledger)} of {most} changes {last.changed}")
    applied = [] if dry_run else retry.carry_out(here, seen, planned.objects, output.note)
    facts = {"job": seen.name, "namespace": here.namespace, "cause": last.cause, "changed": last.changed}
    lines = [f"{here.namespace}/{one}" for one in applied]
    lines.append("would be retried" if dry_run else f"next: yard job status {seen.name} --watch")
    done = {"applied": not dry_run, "objects": [vars(one) for one in applied]}
    output.answer({**facts, **done, "attempts": [asdict(one) for one in planned.ledger]}, lines, as_json)
