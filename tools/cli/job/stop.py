"""Stop a job: its pods save a checkpoint, then the job is suspended or deleted.

The pods get SIGTERM and their grace period; the trainer saves a checkpoint and exits. The command prints what
the logs say about that checkpoint. `yard job submit CELL --resume` continues a suspended job.

A job that another object made, such as an AppWrapper or a TrainJob, is stopped through that object.

\b
Examples:
  yard job stop cpu-llama-tiny-train
  yard job stop cpu-llama-tiny-train --delete

\b
Exit codes: 0 stopped with a checkpoint, or nothing to save, 1 not stopped, 3 no log shows a checkpoint.
"""

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import stop
from tools.job.snapshot import lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="end a job with a checkpoint, then suspend or delete it")
@_options.job
@_options.cluster
@click.option("--delete", is_flag=True, help="Delete the job when its pods have ended.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, delete: bool, as_json: bool) -> None:
    here = lookup.in_namespace(kubectl)
    found = lookup.find(here, job)
    name = found.workload.name
    if found.state in ("Succeeded", "Failed") and not delete:
        raise UserError(f"{name} has ended already: {found.state}", "--delete removes it", 1)
    if found.owner is not None and found.resource is not None:
        output.note(f"{found.workload.title} was made by {found.title}: that is what is stopped")
    drained = stop.drain(here, found, output.note, delete)
    if delete:
        stop.delete(here, found, output.note)
    verb = "deleted" if delete else "suspended"
    uid = found.workload.item["metadata"].get("uid") or found.top["metadata"]["uid"]
    if as_json:
        facts = {"job": name, "through": found.title, "namespace": here.namespace, "uid": uid, "result": verb}
        output.data({**facts, "step": drained.step, "saved": drained.saved, "evidence": drained.evidence})
    else:
        output.line(f"{verb}: {here.namespace}/{name} ({uid})")
        output.line(f"  {drained.evidence}")
        if not delete and found.workload.kind == "PyTorchJob" and found.owner is None:
            output.line("next: yard job submit CELL --resume")
        elif not delete:
            output.line(f"next: {found.resumption}")
    if not drained.saved and drained.ran:
        raise click.exceptions.Exit(3)
