"""Submit a cell or a manifest to the cluster, and follow the job to its first step or to what delays it."""

import contextlib
import shlex
import sys
from dataclasses import dataclass

from tools.cells import knobs as cells_knobs
from tools.cells import outlook
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.cli.job import _options
from tools.cli.plan import _shown
from tools.core import UserError, output, wait
from tools.job import follow, stop, submit, submitted, sweep, sync
from tools.job.follow import Followed
from tools.job.snapshot import LiveJob, lookup
from tools.job.submit import Applied
from tools.kube import Kubectl, Manifests, name_of
from tools.plan.memory import CARDS
from tools.plan.outlook import Place, Plan
from tools.workload import kinds
from training.config import ConfigError


@dataclass(frozen=True)
class _Job:
    """One job to submit: its objects, the job of its name in the cluster, and whether that one continues."""

    knobs: Knobs
    manifests: Manifests
    existing: LiveJob | None = None
    resumed: bool = False

    @property
    def name(self) -> str:
        return kinds.job_of(self.manifests).name


@_knobs.knobs
@_options.cluster
def command(
    kubectl: Kubectl,
    cell: str | None,
    file: str | None,
    knobs: Knobs,
    sweeps: tuple[str, ...],
    resume: bool,
    replace: bool,
    dry_run: bool,
    yes: bool,
    dev: bool,
    no_follow: bool,
    to_the_end: bool,
    timeout: int,
    as_json: bool,
) -> int:
    if resume and replace:
        raise UserError("--resume continues the job and --replace ends it: give one of them")
    if to_the_end and (no_follow or dry_run or sweeps):
        raise UserError("--follow watches one job to its end: give neither --no-follow, --dry-run nor --sweep")
    plain = cells_knobs.rendered(cell, file, Knobs())
    if to_the_end and (wrapper := kinds.job_of(plain).wrapper):
        raise UserError(f"--follow: the controller of {wrapper} may make the job much later", "yard job status --watch")
    here = lookup.in_namespace(kubectl)
    points = sweep.points(submit.with_served_kind(here, plain, knobs, output.note), sweeps)
    jobs = [_Job(one, cells_knobs.applied(plain, one)) for one in points]
    for job in jobs if dev else ():
        sync.prepare(job.manifests)
    if sweeps and not as_json:
        output.table([(job.name, *job.knobs.settings) for job in jobs], indent="")
    _agree([job.manifests for job in jobs], ask=not (yes or dry_run or as_json))
    target = shlex.join([cell] if cell is not None else ["-f", str(file)])
    jobs = _prepared(here, jobs, target, resume, replace)
    applied = [] if dry_run else _apply_all(here, jobs, target)
    if sweeps:
        _print_sweep(here, jobs, applied, as_json)
        return 0
    if dry_run:
        _print_applied(here, [], "would be applied", as_json)
        return 0
    (objects,), wanted = applied, kinds.job_of(jobs[0].manifests)
    if no_follow or wanted.wrapper:  # the controller of a wrapper may make the job much later
        _print_applied(here, objects, "applied", as_json)
        return 0
    if not as_json:
        _print_objects(here, objects)
    uid = submit.uid_of(objects, wanted.item)
    if to_the_end:
        followed = follow.to_the_end(here, jobs[0].manifests, uid, output.note)
    else:
        followed = follow.follow(here, wanted, uid, timeout, output.note)
    return _print_followed(here, objects, followed, as_json)


def _prepared(kubectl: Kubectl, jobs: list[_Job], target: str, resume: bool, replace: bool) -> list[_Job]:
    """Return the jobs with what the cluster has of them; UserError if one of them would be refused."""
    said: set[str] = set()
    progress = wait.sparing(output.note)
    found: list[_Job] = []
    for number, job in enumerate(jobs, start=1):
        words = shlex.join(job.knobs.arguments())
        say, named = lambda text: _note_once(text, said), f"{target} {words}".strip()
        # The jobs of a sweep read the same files, unless it is about them.
        volume = not found or any(one.startswith(("data.", "model.")) for one in job.knobs.settings)
        submit.check(kubectl, job.manifests, say, named, volume)
        live = submit.existing(kubectl, job.manifests)
        change = submit.difference(kubectl, job.manifests) if live else ""
        if live:
            output.note(f"{name_of(live.top)} ({live.uids[-1]}) exists: {live.state}")
            output.notes(change.rstrip() or "it is equal to the cell")
        elif resume or replace:
            output.note(f"no job with the name {job.name}; creating it")
        resumed = submit.resumes(live, change, resume, replace)
        for warning in submit.dry_run(kubectl, job.manifests, replaced=live is not None and not resumed):
            _note_once(warning, said)
        found.append(_Job(job.knobs, job.manifests, live, resumed))
        if number < len(jobs):
            progress(f"checked {number} of {output.count(len(jobs), 'job')}")
    return found


def _agree(jobs: list[Manifests], ask: bool) -> None:
    """Print the plan of each job, and ask on a terminal where it costs money."""
    plans: list[Plan | Place] = []
    for manifests in jobs:
        with contextlib.suppress(UserError, ConfigError):  # preflight judges the job
            plans.append(outlook.of(manifests))
    if plans:
        rows = [(plan.place.name, *_shown.row(plan)) for plan in plans]
        output.notes("\n".join(output.columns([("job", *_shown.HEADS), *rows])))
    for why in dict.fromkeys(plan.why_unknown for plan in plans if plan.why_unknown):
        output.note(f"time is {why}")
    costs = any(plan.place.instance or plan.place.room.what in CARDS for plan in plans)
    if ask and costs and sys.stdin.isatty() and output.ask("submit it? yes/no") != "yes":
        raise UserError("nothing was submitted", "--yes agrees without a question")


def _note_once(text: str, said: set[str]) -> None:
    if text not in said:
        said.add(text)
        output.note(text)


def _apply_all(kubectl: Kubectl, jobs: list[_Job], target: str) -> list[list[Applied]]:
    """Apply the jobs one after the other; UserError, with those that were applied before as a note."""
    applied: list[list[Applied]] = []
    for job in jobs:
        try:
            applied.append(_apply(kubectl, job, target))
        except UserError:
            if applied:
                output.note(f"submitted before this: {', '.join(one.name for one in jobs[: len(applied)])}")
            raise
    return applied


def _apply(kubectl: Kubectl, job: _Job, target: str) -> list[Applied]:
    live = job.existing
    if live is not None and job.resumed:
        stop.resume(kubectl, live)
        return [Applied(str(live.top["kind"]), name_of(live.top), live.uids[-1])]
    if live is not None:
        output.note(f"ending {name_of(live.top)} ({live.uids[-1]})")
        stop.delete(kubectl, live, output.note)
    applied = submit.apply(kubectl, job.manifests)[0]
    top = lookup.top_of(job.manifests)
    words = f"yard job submit {target} {shlex.join(job.knobs.arguments())}".strip()
    for problem in submitted.keep(kubectl, job.manifests, top, submit.uid_of(applied, top), words):
        output.note(problem)
    return applied


def _print_sweep(kubectl: Kubectl, jobs: list[_Job], applied: list[list[Applied]], as_json: bool) -> None:
    result = "applied" if applied else "would be applied"
    if as_json:
        objects_of = [[vars(one) for one in objects] for objects in applied] or [[]] * len(jobs)
        rows = [
            {"name": job.name, "settings": list(job.knobs.settings), "objects": objects}
            for job, objects in zip(jobs, objects_of, strict=True)
        ]
        output.data({"result": result, "namespace": kubectl.namespace, "jobs": rows})
        return
    for objects in applied:
        _print_objects(kubectl, objects)
    output.line(f"{output.count(len(jobs), 'job')} {result} in namespace {kubectl.namespace}")
    if applied:
        output.line(f"next: yard job plot {' '.join(job.name for job in jobs)}")


def _print_objects(kubectl: Kubectl, applied: list[Applied]) -> None:
    for one in applied:
        output.line(f"{kubectl.namespace}/{one}")


def _print_applied(kubectl: Kubectl, applied: list[Applied], result: str, as_json: bool) -> None:
    found = {"result": result, "namespace": kubectl.namespace, "objects": [vars(one) for one in applied]}
    lines = [f"{kubectl.namespace}/{one}" for one in applied]
    output.answer(found, [*lines, f"{result} in namespace {kubectl.namespace}"], as_json)


def _print_followed(kubectl: Kubectl, applied: list[Applied], followed: Followed, as_json: bool) -> int:
    """Print the outcome and return its exit code."""
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
    if step is not None or followed.snapshot.condition("Succeeded") is not None:
        return 0
    return found.verdict.state.exit_code or 3
