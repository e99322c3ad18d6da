"""Stop a job: its pods drain with a checkpoint, then it stays suspended, or is deleted.

The pods get SIGTERM and their grace period; the trainer saves and exits. What the logs say of the last
checkpoint is printed; where they do not say it, the exit code is 3. `yard job submit CELL --resume` goes on.

\b
Examples:
  yard job stop cpu-llama-tiny-train
  yard job stop cpu-llama-tiny-train --delete

\b
Exit codes: 0 stopped with a checkpoint, or there was nothing to save, 3 stopped and no checkpoint was seen.
"""

from __future__ import annotations

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import stop, submit
from tools.job.snapshot import lookup
from tools.job.status import state_of
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="drain a job with a checkpoint, then suspend or delete it")
@_options.job
@_options.cluster
@click.option("--delete", is_flag=True, help="Delete the job when its pods have ended.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, delete: bool, as_json: bool) -> None:
    here = Kubectl(kubectl.context, submit.namespace_of(kubectl))
    name = lookup.job_name(here, job)
    found = submit.existing(here, name)
    if found is None:
        raise UserError(f"no such job in namespace {here.namespace}: {name}", "yard job list -A")
    if state_of(found) in ("Succeeded", "Failed") and not delete:
        raise UserError(f"{name} has ended already: {state_of(found)}", "--delete removes it", 1)
    drained = stop.drain(here, found, output.note)
    if delete:
        submit.delete(here, found, output.note)
    verb = "deleted" if delete else "suspended"
    uid = found["metadata"]["uid"]
    if as_json:
        facts = {"job": name, "namespace": here.namespace, "uid": uid, "result": verb}
        output.data({**facts, "step": drained.step, "saved": drained.saved, "evidence": drained.evidence})
    else:
        output.line(f"{verb}: {here.namespace}/{name} ({uid})")
        output.line(f"  {drained.evidence}")
        if not delete and job:
            output.line("next: yard job submit CELL --resume")
    if not drained.saved and drained.ran:
        raise click.exceptions.Exit(3)
