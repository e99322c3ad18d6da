"""Submit a cell to the cluster, and follow the job to its first step or to the cause of a delay.

Before it applies anything, the command runs preflight, looks for the namespace and for the objects that the
pods need, and asks the API server for a dry run. It does not change an existing job of the same name without
--resume or --replace; it shows the difference.

\b
Examples:
  yard job submit overlays/cpu/llama-tiny -n team-a
  yard job submit cpu/llama-tiny --dry-run
  yard job submit cpu/llama-tiny --resume         continue a suspended or failed job
  yard job submit cpu/llama-tiny --replace        end the job with a checkpoint, then start this one

\b
Exit codes: 0 training (or applied, with --no-follow), 1 refused or not training, 3 unknown.
"""

from __future__ import annotations

import click

from tools.cells import locate
from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import stop, submit
from tools.job.follow import Followed, follow
from tools.job.snapshot import lookup
from tools.job.snapshot.live_job import LiveJob
from tools.job.submit import Applied
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests
from tools.workload.workload import Workload


@click.command(help=__doc__, short_help="submit a cell to the cluster and follow it")
@click.argument("cell")
@_options.cluster
@click.option("--resume", is_flag=True, help="Continue a suspended or failed job of this name.")
@click.option("--replace", is_flag=True, help="End the job of this name, then submit.")
@click.option("--dry-run", is_flag=True, help="Check everything and apply nothing.")
@click.option("--image", metavar="IMAGE", help="Run this image instead of the cell's (yard image overlay).")
@click.option("--no-follow", is_flag=True, help="Return once it is applied.")
@_options.timeout("How long to follow the job.")
@_options.as_json
def command(
    kubectl: Kubectl,
    cell: str,
    resume: bool,
    replace: bool,
    dry_run: bool,
    image: str | None,
    no_follow: bool,
    timeout: int,
    as_json: bool,
) -> None:
    if resume and replace:
        raise UserError("--resume continues the job and --replace ends it: give one of them")
    manifests = locate.rendered(cell)
    if image is not None:
        submit.use_image(manifests, image)
    wanted = lookup.job_of(manifests)
    here = lookup.in_namespace(kubectl)
    submit.check(here, manifests, output.note)
    job = lookup.existing(here, wanted)
    change = submit.difference(here, manifests) if job else ""
    resumed = _resumes(job, change, resume, replace)
    for warning in submit.dry_run(here, manifests, replaced=job is not None and not resumed):
        output.note(warning)
    if dry_run:
        _print_applied(here, [], "would be applied", as_json)
        return
    applied = _apply(here, manifests, job, resumed)
    if no_follow:
        _print_applied(here, applied, "applied", as_json)
        return
    if not as_json:
        _print_objects(here, applied)
    followed = follow(here, wanted, submit.job_uid(applied, wanted), timeout, output.note)
    _print_followed(here, applied, followed, as_json)


def _resumes(job: Workload | None, change: str, resume: bool, replace: bool) -> bool:
    """Return whether the existing job continues as it is; UserError if an option is missing or wrong."""
    if job is None:
        if resume or replace:
            output.note("no job with this name; creating it")
        return False
    name, state = job.name, job.state
    output.note(f"{name} ({_uid(job)}) exists: {state}")
    output.notes(change.rstrip() or "it is equal to the cell")
    if replace:
        return False
    if not resume:
        hint = "--resume continues it, --replace ends it first"
        raise UserError(f"a job {name} exists already ({state}); nothing was changed", hint, 1)
    if state in ("Succeeded", "Failed"):
        return False
    if not job.suspended and state != "Suspended":
        raise UserError(f"{name} is {state} and not suspended: there is nothing to resume", code=1)
    if change:
        hint = "--replace starts the cell as it is now"
        raise UserError(f"the cell differs from the suspended job {name}", hint, 1)
    return True


def _apply(kubectl: Kubectl, manifests: Manifests, job: Workload | None, resumed: bool) -> list[Applied]:
    if job is not None and resumed:
        stop.resume(kubectl, LiveJob(job))
        return [Applied(job.kind, job.name, _uid(job))]
    if job is not None:
        output.note(f"ending {job.name} ({_uid(job)})")
        stop.delete(kubectl, LiveJob(job), output.note)
    return submit.apply(kubectl, manifests)[0]


def _uid(job: Workload) -> str:
    return str(job.item["metadata"]["uid"])


def _print_objects(kubectl: Kubectl, applied: list[Applied]) -> None:
    for one in applied:
        output.line(f"{kubectl.namespace}/{one}")


def _print_applied(kubectl: Kubectl, applied: list[Applied], result: str, as_json: bool) -> None:
    if as_json:
        objects = [vars(one) for one in applied]
        output.data({"result": result, "namespace": kubectl.namespace, "objects": objects})
        return
    _print_objects(kubectl, applied)
    output.line(f"{result} in namespace {kubectl.namespace}")


def _print_followed(kubectl: Kubectl, applied: list[Applied], followed: Followed, as_json: bool) -> None:
    """Print the outcome and exit with its code."""
    found, step, name = followed.explanation, followed.step, followed.snapshot.name
    if as_json:
        facts = {"result": "trains" if step else found.name, "namespace": kubectl.namespace}
        details = {"objects": [vars(one) for one in applied], "step": step.as_dict() if step else None}
        output.data({**facts, **details, **found.verdict.as_dict()})
    elif step is not None:
        loss = "" if step.loss is None else f", loss {step.loss:.3f}"
        output.line(f"training: step {step.step}{loss}")
        output.line(f"next: yard job status {name} --watch")
    else:
        output.verdict(found.verdict)
        output.line(f"next: yard job why {name} -v")
    if step is None and followed.snapshot.condition("Succeeded") is None:
        raise click.exceptions.Exit(found.verdict.state.exit_code or 3)
