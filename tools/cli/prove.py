"""Prove that a training script trains on all its ranks and comes back after failures."""

import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.cli._parameters import shared
from tools.cli.job import _options
from tools.core import State, UserError, output, repo
from tools.job import proof_job
from tools.job.snapshot import lookup
from tools.kube import Kubectl, Manifests
from tools.prove import claims, pods, proofs, report, run, trials
from tools.prove.observed import TABLE
from tools.prove.trials import Options, Subject
from tools.workload import kinds

PROOF = "proof"
PODS = 2  # of a proof in the cluster, where the job has as many


@shared
def wishes(
    steps: int,
    kill_at: int | None,
    resume: str | None,
    keep: tuple[str, ...],
    link: tuple[str, ...],
    env: tuple[str, ...],
    timeout: float,
    only: tuple[str, ...],
    network: bool,
) -> dict[str, Any]:
    if kill_at is not None and kill_at >= steps:
        raise UserError(f"--kill-at {kill_at}: each run ends after {steps} steps", f"--steps {kill_at + 10}")
    if resume is not None and not resume.strip():
        raise UserError('--resume "": give the command of a restart', "without --resume a restart has the same command")
    return {"options": Options(steps, kill_at, resume, keep, link, env, timeout, only, network, trials.wanted(only))}


@_knobs.knobs
@wishes
@_options.cluster
def command(
    kubectl: Kubectl,
    words: tuple[str, ...],
    file: str | None,
    knobs: Knobs,
    workdir: Path | None,
    out: Path | None,
    page: Path | None,
    strict: bool,
    submitted: bool,
    yes: bool,
    as_json: bool,
    options: Options,
) -> int:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what follows cleans up then too
    if not submitted and (kubectl.namespace or kubectl.context):
        raise UserError("--namespace and --context name a cluster: --submit proves there")
    for name, path in (("--out", out), ("--report", page)):
        _check_place(name, path)
    records = Path(tempfile.mkdtemp(prefix="yard-prove-"))
    try:
        if submitted:
            result, what, image = _in_cluster(kubectl, words, file, knobs, workdir, options, yes, records)
        else:
            subject, what = _subject(words, file, knobs, workdir, options, yes)
            _check_links(subject.workdir, options.link)
            result, image = run.prove(subject, options, records), subject.image
    finally:
        shutil.rmtree(records, ignore_errors=True)
    kept = proofs.saved(what, result.verdicts, result.versions, result.figures, result.not_proven, image)
    if out is not None:
        repo.write(out, json.dumps(asdict(kept), indent=2) + "\n")
    if page is not None:
        report.write(page, kept)
    if as_json:
        output.data(asdict(kept))
    else:
        _show(result)
    if not options.only:
        output.note(f"kept: {repo.shown(proofs.write(kept))}")
    return claims.exit_code(result.verdicts, strict)


def _subject(
    words: Sequence[str], file: str | None, knobs: Knobs, workdir: Path | None, options: Options, yes: bool
) -> tuple[Subject, proofs.Program]:
    """Return what is proven, and the name under which its proof is kept."""
    if file is not None and words:
        raise UserError("give -f FILE, a CELL or a COMMAND: only one of them")
    if file is None and not words:
        raise UserError("nothing to prove", "yard prove -- torchrun --nproc-per-node 2 train.py")
    path = Path(words[0]) if words else Path()
    is_cell = len(words) == 1 and path.suffix not in (".py", ".sh") and not path.is_file() and not shutil.which(path)
    if file is None and (workdir is not None or not is_cell):
        place = (workdir or Path.cwd()).resolve()
        subject = trials.of_command(words, place, knobs, options)
        return subject, proofs.program(subject.command, place)
    if workdir is not None:
        raise UserError("--workdir is for a COMMAND", "the manifest says where its command starts")
    renamed = knobs if knobs.name else replace(knobs, name=PROOF)
    manifests = cells_knobs.rendered(words[0] if words else None, file, renamed)
    if file is not None and not yes:
        what = f"the command of {manifests.source}"
        _ask(f"run {what} with your rights", f"{what} would run with your rights")
    subject = trials.of_manifests(manifests, words or ("-f", str(file)), renamed, options)
    return subject, _program(manifests, subject.command, subject.workdir)


def _in_cluster(
    kubectl: Kubectl,
    words: Sequence[str],
    file: str | None,
    knobs: Knobs,
    workdir: Path | None,
    options: Options,
    yes: bool,
    records: Path,
) -> tuple[run.Result, proofs.Program, str]:
    """Prove a cell or the job of a file in the cluster."""
    if (file is None) == (len(words) != 1) or workdir is not None or options.network or options.link:
        raise UserError("--submit takes a CELL or -f FILE, and neither --workdir, --network nor --link")
    plain = cells_knobs.rendered(words[0] if words else None, file, Knobs())
    here = lookup.in_namespace(kubectl)
    small = min(PODS, kinds.job_of(plain).nodes)
    wanted = replace(knobs, nodes=knobs.nodes or small, name=knobs.name or f"{PROOF}-{secrets.token_hex(3)}")
    manifests = cells_knobs.applied(plain, wanted)
    trial = pods.trial(manifests, options)
    output.note(f"{proof_job.price(manifests, trial.plan.nodes)}; a small script takes a few minutes")
    if not yes:
        _ask(f"prove {trial.subject.name} in namespace {here.namespace}", "a proof in the cluster costs money")
    proven = proof_job.prove(here, manifests, trial, options, records)
    return proven.result, _program(manifests, trial.subject.command, Path.cwd()), proven.image


def _program(manifests: Manifests, command: Sequence[str], place: Path) -> proofs.Program:
    found = proofs.wanted(manifests, place)
    return found[0].program if found else proofs.program(command, place)


def _ask(question: str, without_answer: str) -> None:
    output.agree(question, UserError(without_answer, "--yes agrees"), UserError("nothing was started"))


def _check_place(option: str, path: Path | None) -> None:
    """Raise UserError where a file could not be written after minutes of a proof."""
    if path is None:
        return
    existing = next(one for one in path.absolute().parents if one.exists())  # its directory is made with the file
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as problem:
        raise UserError(f"{option} {path}: {problem.strerror}") from None


def _check_links(workdir: Path, links: tuple[str, ...]) -> None:
    for link in links:
        if not (workdir / link).exists():
            raise UserError(f"--link {link}: no such file or directory in {repo.shown(workdir)}")


def _show(result: run.Result) -> None:
    for verdict in result.verdicts:
        title = f"{verdict.details['number']}. {TABLE['claims'][verdict.details['claim']]['title']}"
        output.verdict(replace(verdict, summary=f"{title}: {verdict.summary}"))
    for row in result.not_proven:
        output.line(f"CANNOT TELL: {row}", state=State.CANNOT_TELL)
    output.line()
    output.table((name, f"{value:,}") for name, value in result.figures.items())
