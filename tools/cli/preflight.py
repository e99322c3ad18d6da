"""Judge manifests by all rules before anything is applied, offline.

A cell is rendered first; -f takes any manifest, ours or anybody's. Every verdict has its evidence, and where
a manifest does not say enough the verdict is CANNOT TELL and not a guess. What each rule looks at and why
stands in docs/preflight.md.

\b
Examples:
  yard preflight overlays/p5/llama-3-1-8b
  yard preflight --all
  yard preflight -f job.yaml -v
  kubectl kustomize overlays/cpu/llama-tiny | yard preflight -

\b
Exit codes: 0 PASS, 1 anything failed, 3 nothing failed and something cannot be told.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from tools.cells import kustomize, locate
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.kube.manifests import Manifests, parse, read
from tools.preflight.evaluate import Judgement, judge, rules

SLOW = 2  # seconds after which rendering shows how far it is


@click.command(help=__doc__, short_help="judge manifests before they are applied")
@click.argument("cells", nargs=-1, metavar="[CELL ...]")
@click.option("--all", "every", is_flag=True, help="All cells under overlays/.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="A manifest (- for standard input)."
)
@click.option("-v", "--verbose", is_flag=True, help="Print also what passed.")
@click.option("--json", "as_json", is_flag=True, help="Print all verdicts as JSON.")
def command(
    cells: tuple[str, ...], every: bool, files: tuple[str, ...], verbose: bool, as_json: bool
) -> None:
    judged = [judge(manifests) for manifests in _manifests(cells, every, files)]
    if as_json:
        output.data([_as_data(one) for one in judged])
    else:
        for one in judged:
            _show(one, verbose)
        if len(judged) > 1:
            _total(judged)
    worst = next(state for state in (State.FAIL, State.CANNOT_TELL, State.PASS) if _any(judged, state))
    if worst.exit_code:
        raise click.exceptions.Exit(worst.exit_code)


def _manifests(cells: tuple[str, ...], every: bool, files: tuple[str, ...]) -> list[Manifests]:
    """Return what is to be judged, each rendered or read once."""
    texts = [*files, *(cell for cell in cells if cell == "-")]
    named = [cell for cell in cells if cell != "-"]
    if every and named:
        raise UserError("give cells, or --all", "yard preflight --all")
    named = locate.cells() if every else named
    if not named and not texts:
        raise UserError("nothing to judge: give a cell, --all, or a file with -f", "yard preflight --all")
    if texts.count("-") > 1:
        raise UserError("standard input can be read once")
    found = _rendered(named) if named else []
    for name in texts:
        manifests = parse(sys.stdin.read(), "standard input") if name == "-" else read(Path(name))
        if not manifests.objects:
            raise UserError(f"{manifests.source}: holds no object")
        found.append(manifests)
    return found


def _rendered(names: list[str]) -> list[Manifests]:
    renderer = kustomize.ensure(repo.root(), output.note)
    found, told = [], time.monotonic()
    for number, name in enumerate(names, start=1):
        path = locate.cell_path(name)
        found.append(parse(renderer.build(path), repo.shown(path)))
        if time.monotonic() - told > SLOW and number < len(names):
            output.note(f"rendered {number} of {output.count(len(names), 'cell')}")
            told = time.monotonic()
    return found


def _any(judged: list[Judgement], state: State) -> bool:
    return state is State.PASS or any(one.state is state for one in judged)


def _show(one: Judgement, verbose: bool) -> None:
    failed, unclear, passed = (one.of(state) for state in (State.FAIL, State.CANNOT_TELL, State.PASS))
    counts = f"{len(failed)} failed, {len(unclear)} cannot be told, {len(passed)} passed"
    output.line(f"{one.state.value}: {one.source}: {counts}")
    for verdict in [*failed, *unclear, *(passed if verbose else [])]:
        _print(verdict)
    if one.needs and (verbose or failed or unclear):
        output.line(f"  needs from the cluster: {', '.join(one.needs)}")


def _print(verdict: Verdict) -> None:
    output.line(f"  {verdict.state.value} {verdict.details['rule']}: {verdict.summary}")
    for line in verdict.evidence:
        output.line(f"    {line}")
    if verdict.state is not State.PASS:
        output.line(f"    why: {rules()[verdict.details['rule']].reason}")
        if verdict.remedy:
            output.line(f"    what to do: {verdict.remedy}")


def _total(judged: list[Judgement]) -> None:
    bad = sum(one.state is State.FAIL for one in judged)
    unclear = sum(one.state is State.CANNOT_TELL for one in judged)
    output.line(
        f"{output.count(len(judged), 'manifest')}: {bad} with failures, {unclear} that cannot be told,"
        f" {len(judged) - bad - unclear} clean"
    )


def _as_data(one: Judgement) -> dict[str, object]:
    return {
        "source": one.source,
        "verdict": one.state.value,
        "needs": one.needs,
        "verdicts": [verdict.as_dict() for verdict in one.verdicts],
    }
