"""Check manifests by all rules before they are applied, offline.

Checks rendered cells, or with -f any manifest, and answers two questions. Will it train: FAIL means that the
job does not start, does not train as one job, loses its work or leaks a secret; CANNOT TELL means that the
manifest does not say enough. Good practice: PASS or WARN. docs/preflight.md describes the rules.

With --fix, findings that have one good value are repaired in the file, or by patches in the directory.

\b
Examples:
  yard preflight overlays/p5/llama-3-1-8b
  yard preflight --all
  yard preflight -f job.yaml -v
  yard preflight -f job.yaml --strict
  yard preflight -f job.yaml --command "torchrun --nnodes 2 train.py"
  yard preflight p5/llama-3-1-8b --nodes 4
  yard preflight p5/llama-3-1-8b --cluster gpu    its machines, claims, kinds of jobs and queues
  yard preflight -f job.yaml --proof local/proofs    its script has been proven
  yard preflight -f job.yaml --fix
  yard preflight overlays/p5/llama-3-1-8b-lora --base models/Llama-3.1-8B
  kubectl kustomize overlays/cpu/llama-tiny | yard preflight -

\b
Exit codes: 0 PASS or WARN, 1 FAIL (with --strict also WARN), 2 bad input, 3 CANNOT TELL.
"""

from collections.abc import Mapping
from pathlib import Path

import click

from tools.cells import knobs as cells_knobs
from tools.cells import kustomize, locate, published
from tools.cells.knobs import Knobs
from tools.cli import _knobs, _preflight_fix, _start
from tools.cluster import fit
from tools.cluster import spec as specs
from tools.core import output, repo, wait
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict, worst
from tools.image import start
from tools.kube.manifests import Manifests, parse, read
from tools.preflight.evaluate import Evaluation, evaluate, rules
from tools.preflight.rule import PRACTICE, TRAINS, Question
from tools.prove import proofs
from tools.workload import kinds

SHOWN = (State.FAIL, State.CANNOT_TELL, State.WARN, State.PASS)


@click.command(help=__doc__)
@click.argument("cells", nargs=-1, metavar="[CELL ...]")
@click.option("--all", "every", is_flag=True, help="Check all cells under overlays/.")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="A manifest, or - for standard input.")
@_knobs.options
@click.option(
    "--base", metavar="SOURCE",
    help="Compare the model with this config.json, directory or <organisation>/<name>@<revision>.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="Also compare with the facts of clusters/NAME.")
@click.option(
    "--proof", type=click.Path(path_type=Path), metavar="DIR",
    help="Also fail for a script without a good proof in this directory, such as local/proofs.",
)  # fmt: skip
@click.option("--fix", is_flag=True, help="Show mechanical repairs as a diff, write them, and check again.")
@_start.options
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@click.option("-v", "--verbose", is_flag=True, help="Also print what passed.")
@click.option("--json", "as_json", is_flag=True, help="Print all verdicts as JSON.")
def command(
    cells: tuple[str, ...],
    every: bool,
    files: tuple[str, ...],
    knobs: Knobs,
    base: str | None,
    cluster: str | None,
    proof: Path | None,
    fix: bool,
    words: str | None,
    image_config: bool,
    strict: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    if fix:
        if image_config or any(one is not None for one in (base, cluster, proof, words)):
            raise UserError("--fix takes no --base, --cluster, --proof, --command and --image-config")
        if knobs:
            raise UserError(f"--fix repairs what is written: give no {knobs.arguments()[0]}")
        checked = _preflight_fix.run(
            cells, every, files, lambda one: _show(one, verbose), _as_data if as_json else None
        )
    else:
        described = None if base is None else published.read(base)
        sources = _manifests(cells, every, files)
        made = [cells_knobs.applied(manifests, knobs) for manifests in sources]
        given = [start.given(kinds.find(one).workloads, words, image_config) for one in made]
        checked = [evaluate(one, described, its) for one, its in zip(made, given, strict=True)]
        if cluster is not None:
            known = specs.load(repo.project(), cluster)
            checked = [one.with_more(fit.check(known, its)) for one, its in zip(checked, made, strict=True)]
        if proof is not None:
            rows = zip(checked, made, given, strict=True)
            checked = [one.with_more(proofs.check(proof, its, how)) for one, its, how in rows]
        _print(checked, verbose, as_json)
    state = worst(one.state for one in checked)
    code = 1 if strict and state is State.WARN else state.exit_code
    if code:
        raise click.exceptions.Exit(code)


def _print(checked: list[Evaluation], verbose: bool, as_json: bool) -> None:
    if as_json:
        output.data([_as_data(one) for one in checked])
        return
    for one in checked:
        _show(one, verbose)
    if len(checked) > 1:
        _total(checked)


def _manifests(cells: tuple[str, ...], every: bool, files: tuple[str, ...]) -> list[Manifests]:
    """Return the manifests to check, each rendered or read once."""
    sources = [*files, *(cell for cell in cells if cell == "-")]
    named = [cell for cell in cells if cell != "-"]
    if every and named:
        raise UserError("give cells or --all, not both", "yard preflight --all")
    named = locate.cells() if every else named
    if not named and not sources:
        raise UserError("nothing to check: give a cell, --all, or a file with -f", "yard preflight --all")
    if sources.count("-") > 1:
        raise UserError("standard input can only be read once")
    manifests = _rendered(named) if named else []
    for name in sources:
        manifest = read(name)
        if not manifest.objects:
            raise UserError(f"{manifest.source}: contains no object")
        manifests.append(manifest)
    return manifests


def _rendered(names: list[str]) -> list[Manifests]:
    renderer = kustomize.ensure(repo.root(), output.note)
    say = wait.sparing(output.note)
    manifests = []
    for number, name in enumerate(names, start=1):
        path = locate.cell_path(name)
        manifests.append(parse(renderer.build(path), repo.shown(path)))
        if number < len(names):
            say(f"rendered {number} of {output.count(len(names), 'cell')}")
    return manifests


def _show(one: Evaluation, verbose: bool) -> None:
    failed, unknown, warned, passed = (one.of(state) for state in SHOWN)
    output.line(f"{one.state.value}: {one.source}: {_summary(one)}")
    for verdict in [*failed, *unknown, *warned, *(passed if verbose else [])]:
        output.rule_verdict(verdict, _reason(verdict))
    if one.needs and (verbose or failed or unknown):
        output.line(f"  needs from the cluster: {', '.join(one.needs)}")


def _reason(verdict: Verdict) -> str:
    name = str(verdict.details["rule"])
    rule = rules().get(name)
    return rule.reason if rule else proofs.REASON if name == proofs.RULE else fit.REASON


def _summary(one: Evaluation) -> str:
    """Return both answers, and what was judged, in one line."""
    failed, unknown, warned = (len(one.of(state)) for state in SHOWN[:3])
    faults = [output.count(failed, "fault")] if failed else []
    faults += [f"{unknown} unknown"] if unknown else []
    warnings = [output.count(warned, "warning")] if warned else []
    answers = {
        TRAINS.value: _answer(one, TRAINS, faults) if one.judged or faults else "no pods to judge",
        PRACTICE.value: _answer(one, PRACTICE, warnings),
        "judged": _kinds(one.judged),
        "not judged": _kinds(one.unjudged),
    }
    return "; ".join(f"{name}: {answer}" for name, answer in answers.items())


def _answer(one: Evaluation, question: Question, counts: list[str]) -> str:
    return one.answer(question).value + (f" ({', '.join(counts)})" if counts else "")


def _kinds(counts: Mapping[str, int]) -> str:
    return ", ".join(output.count(count, kind) for kind, count in counts.items()) or "nothing"


def _total(checked: list[Evaluation]) -> None:
    states = [one.state for one in checked]
    counts = {state: states.count(state) for state in SHOWN}
    listed = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    output.line(f"{output.count(len(checked), 'manifest')}: {listed}")


def _as_data(one: Evaluation) -> dict[str, object]:
    return {
        "source": one.source,
        "verdict": one.state.value,
        "answers": {question.value: one.answer(question).value for question in Question},
        "judged": one.judged,
        "not_judged": one.unjudged,
        "needs": one.needs,
        "verdicts": [verdict.as_dict() for verdict in one.verdicts],
    }
