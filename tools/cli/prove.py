"""Prove that a training script trains on all its ranks and comes back after failures."""

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import Verdict
from tools.kube.manifests import Manifests
from tools.prove import claims, proofs, report, run, trials
from tools.prove.observed import TABLE
from tools.prove.trials import Options, Subject

PROOF = "proof"


@click.command()
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[CELL | -- COMMAND ...]")
@click.option("-f", "--file", metavar="FILE", help="Prove the job of FILE (- for standard input).")
@_knobs.options
@click.option("--steps", type=click.IntRange(2), default=30, show_default=True, help="End each run after N steps.")
@click.option("--kill-at", type=click.IntRange(1), metavar="N", help="Kill after step N.  [default: between two saves]")
@click.option("--resume", metavar="COMMAND", help="Restart with this command.  [default: the same]")
@click.option("--workdir", type=click.Path(path_type=Path), help="Start the command here.  [default: .]")
@click.option(
    "--keep", multiple=True, metavar="PATH", help="What survives a restart.  [default: the working directory]"
)
@click.option("--link", multiple=True, metavar="PATH", help="Data that a copy of the directory links to.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Give the command a variable.")
@click.option("--timeout", type=click.FloatRange(1), default=300, show_default=True, help="Seconds for one run.")
@click.option("--only", multiple=True, metavar="CLAIM", help="Prove this claim only: its name or number.")
@click.option("--network", is_flag=True, help="Leave the network of this machine to the command.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON.")
@click.option("--report", "page", type=click.Path(path_type=Path), metavar="FILE.html", help="Write a report.")
@click.option("--strict", is_flag=True, help="Exit with 1 for a WARN too.")
@click.option("--yes", is_flag=True, help="Start the command of a file without a question.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    words: tuple[str, ...],
    file: str | None,
    knobs: Knobs,
    workdir: Path | None,
    out: Path | None,
    page: Path | None,
    strict: bool,
    yes: bool,
    as_json: bool,
    only: tuple[str, ...],
    **others: Any,
) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what follows cleans up then too
    options = Options(**others, only=only, claims=trials.wanted(only))
    subject, what = _subject(words, file, knobs, workdir, options, yes)
    records = Path(tempfile.mkdtemp(prefix="yard-prove-"))
    try:
        result = run.prove(subject, options, records)
    finally:
        shutil.rmtree(records, ignore_errors=True)
    kept = proofs.saved(what, result.verdicts, result.versions, result.figures, result.not_proven, subject.image)
    if out is not None:
        _write(out, json.dumps(asdict(kept), indent=2) + "\n")
    if page is not None:
        report.write(page, kept)
    if as_json:
        output.data(asdict(kept))
    else:
        _show(result)
    if not only:
        output.note(f"kept: {repo.shown(proofs.write(kept))}")
    code = claims.exit_code(result.verdicts, strict)
    if code:
        raise click.exceptions.Exit(code)


def _subject(
    words: Sequence[str], file: str | None, knobs: Knobs, workdir: Path | None, options: Options, yes: bool
) -> tuple[Subject, proofs.Program]:
    """Return what is proven, and the name under which its proof is kept."""
    if file is not None and words:
        raise UserError("give -f FILE, a CELL or a COMMAND: only one of them")
    if file is None and not words:
        raise UserError("nothing to prove", "yard prove -- torchrun --nproc-per-node 2 train.py")
    is_cell = len(words) == 1 and shutil.which(words[0]) is None and not Path(words[0]).is_file()
    if file is None and not is_cell:
        place = (workdir or Path.cwd()).resolve()
        subject = trials.of_command(words, place, knobs, options)
        return subject, proofs.program(subject.command, place)
    if workdir is not None:
        raise UserError("--workdir is for a COMMAND", "the manifest says where its command starts")
    renamed = knobs if knobs.name else replace(knobs, name=PROOF)
    manifests = cells_knobs.rendered(words[0] if words else None, file, renamed)
    if file is not None and not yes:
        _agree(manifests)
    subject = trials.of_manifests(manifests, words or ("-f", str(file)), renamed, options)
    return subject, _program(manifests, subject)


def _program(manifests: Manifests, subject: Subject) -> proofs.Program:
    found = proofs.wanted(manifests, subject.workdir)
    return found[0].program if found else proofs.program(subject.command, subject.workdir)


def _agree(manifests: Manifests) -> None:
    if not sys.stdin.isatty():
        raise UserError(f"the command of {manifests.source} would run with your rights", "--yes agrees")
    if output.ask(f"run the command of {manifests.source} with your rights? yes/no") != "yes":
        raise UserError("nothing was started")


def _write(path: Path, text: str) -> None:
    try:
        repo.write(path, text)
    except OSError as problem:
        raise UserError(f"--out {path}: {problem.strerror}") from None


def _show(result: run.Result) -> None:
    for verdict in result.verdicts:
        output.verdict(_titled(verdict))
    for row in result.not_proven:
        output.line(f"CANNOT TELL: {row}")
    output.line()
    output.table((name, f"{value:,}") for name, value in result.figures.items())


def _titled(verdict: Verdict) -> Verdict:
    title = f"{verdict.details['number']}. {TABLE['claims'][verdict.details['claim']]['title']}"
    return replace(verdict, summary=f"{title}: {verdict.summary}")
