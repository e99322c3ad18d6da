"""Bring a cell to the cluster, and follow it to its first step or to the first cause of delay.

Beforehand: preflight must not fail, the namespace and what the pods need must be there, and the API server
must accept everything in a dry run. A job of the same name is left alone unless a flag says otherwise; the
difference is shown.

\b
Examples:
  yard job submit overlays/cpu/llama-tiny -n team-a
  yard job submit cpu/llama-tiny --dry-run
  yard job submit cpu/llama-tiny --resume         let a suspended job run, or a failed one again
  yard job submit cpu/llama-tiny --replace        end the running one with a checkpoint, start this

\b
Exit codes: 0 it trains (or was applied, with --no-follow), 1 it was refused or does not train, 3 cannot tell.
"""

from __future__ import annotations

from typing import Any

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import checks, submit
from tools.job.diagnosis.explain import Answer
from tools.job.snapshot import lookup
from tools.job.status import state_of
from tools.job.submit import Applied
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, name_of

SECONDS = 1800


@click.command(help=__doc__, short_help="bring a cell to the cluster and follow it")
@click.argument("cell")
@_options.cluster
@click.option("--resume", is_flag=True, help="Go on with a suspended or failed job of this name.")
@click.option("--replace", is_flag=True, help="End the job of this name, then submit.")
@click.option("--dry-run", is_flag=True, help="Check everything and apply nothing.")
@click.option("--image", metavar="IMAGE", help="Run this image instead of the cell's (yard image overlay).")
@click.option("--no-follow", is_flag=True, help="Return once it is applied.")
@click.option(
    "--timeout", type=click.IntRange(min=1), default=SECONDS, show_default=True, metavar="SECONDS",
    help="How long to follow.",
)  # fmt: skip
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
        raise UserError("--resume goes on with the same job, --replace ends it: give one of them")
    manifests = lookup.rendered(cell)
    if image is not None:
        submit.use_image(manifests, image)
    name = name_of(manifests.job())
    here = Kubectl(kubectl.context, submit.namespace_of(kubectl))
    checks.check(here, manifests, output.note)
    job = submit.existing(here, name)
    change = submit.difference(here, manifests) if job else ""
    resumed = _decide(job, change, resume, replace)
    for warning in submit.try_out(here, manifests, replaced=job is not None and not resumed):
        output.note(warning)
    if dry_run:
        _done(as_json, "would be applied", here, [], None)
        return
    applied = _apply(here, manifests, job, resumed)
    uid = next(one.uid for one in applied if one.kind == "PyTorchJob")
    if no_follow:
        _done(as_json, "applied", here, applied, None)
        return
    if not as_json:
        _print(here, applied)
    followed = submit.follow(here, name, uid, timeout, output.note)
    _done(as_json, "followed", here, applied, followed)


def _decide(job: dict[str, Any] | None, change: str, resume: bool, replace: bool) -> bool:
    """Say whether the job that is there goes on as it is; UserError where a flag is missing or wrong."""
    if job is None:
        if resume or replace:
            output.note("there is no job of this name: it is made")
        return False
    name, state = name_of(job), state_of(job)
    uid = job["metadata"]["uid"]
    output.note(f"{name} ({uid}) is there: {state}")
    output.note(change.rstrip() if change else "it does not differ from the cell")
    if replace:
        return False
    if not resume:
        hint = "--resume goes on with it, --replace ends it first"
        raise UserError(f"a job {name} is there already ({state}); nothing was changed", hint, 1)
    if state in ("Succeeded", "Failed"):
        return False
    if not (job["spec"].get("runPolicy") or {}).get("suspend"):
        raise UserError(f"{name} is {state} and not suspended: there is nothing to resume", code=1)
    if change:
        raise UserError(
            f"the cell differs from the suspended job {name}", "--replace starts the cell as it is", 1
        )
    return True


def _apply(
    kubectl: Kubectl, manifests: Manifests, job: dict[str, Any] | None, resumed: bool
) -> list[Applied]:
    if job is not None and resumed:
        found = submit.suspend(kubectl, name_of(job), False)
        return [Applied("PyTorchJob", name_of(found), found["metadata"]["uid"])]
    if job is not None:
        output.note(f"ending {name_of(job)} ({job['metadata']['uid']})")
        submit.delete(kubectl, job, output.note)
    applied, _ = submit.apply(kubectl, manifests)
    return applied


def _print(kubectl: Kubectl, applied: list[Applied]) -> None:
    for one in applied:
        output.line(f"{kubectl.namespace}/{one.kind}/{one.name} {one.uid}")


def _done(
    as_json: bool, word: str, kubectl: Kubectl, applied: list[Applied], followed: submit.Followed | None
) -> None:
    """Print what came of it and exit with its code."""
    objects = [{"kind": one.kind, "name": one.name, "uid": one.uid} for one in applied]
    if followed is None:
        if as_json:
            output.data({"result": word, "namespace": kubectl.namespace, "objects": objects})
        else:
            _print(kubectl, applied)
            output.line(f"{word} in namespace {kubectl.namespace}")
        return
    found, step = followed.explanation, followed.step
    trains = step is not None
    if as_json:
        facts = {"result": "trains" if trains else found.state.value, "namespace": kubectl.namespace}
        record = step.as_dict() if step else None
        output.data({**facts, "objects": objects, "step": record, **found.verdict.as_dict()})
    elif step is not None:
        loss = "" if step.loss is None else f", loss {step.loss:.3f}"
        output.line(f"it trains: step {step.step}{loss}")
        output.line(f"next: yard job status {followed.snapshot.name} --watch")
    else:
        output.verdict(found.verdict)
        output.line(f"next: yard job why {followed.snapshot.name} -v")
    if trains and found.state is not Answer.CAUSE:
        return
    over = followed.snapshot.condition("Succeeded") is not None
    raise click.exceptions.Exit(0 if trains or over else found.verdict.state.exit_code or 3)
