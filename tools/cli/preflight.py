"""Check manifests by all rules before they are applied, offline.

Checks rendered cells, or with -f any manifest. Each verdict has its evidence. If a manifest does not say
enough, the verdict is CANNOT TELL. docs/preflight.md describes the rules.

\b
Examples:
  yard preflight overlays/p5/llama-3-1-8b
  yard preflight --all
  yard preflight -f job.yaml -v
  kubectl kustomize overlays/cpu/llama-tiny | yard preflight -

\b
Exit codes: 0 PASS, 1 anything failed, 2 bad input, 3 nothing failed and something is unknown.
"""

from __future__ import annotations

import click

from tools.cells import kustomize, locate
from tools.core import output, repo, wait
from tools.core.errors import UserError
from tools.core.verdict import State, worst
from tools.kube.manifests import Manifests, parse, read
from tools.preflight.evaluate import Evaluation, evaluate, rules


@click.command(help=__doc__)
@click.argument("cells", nargs=-1, metavar="[CELL ...]")
@click.option("--all", "every", is_flag=True, help="Check all cells under overlays/.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="A manifest, or - for standard input."
)
@click.option("-v", "--verbose", is_flag=True, help="Also print what passed.")
@click.option("--json", "as_json", is_flag=True, help="Print all verdicts as JSON.")
def command(
    cells: tuple[str, ...], every: bool, files: tuple[str, ...], verbose: bool, as_json: bool
) -> None:
    checked = [evaluate(manifests) for manifests in _manifests(cells, every, files)]
    if as_json:
        output.data([_as_data(one) for one in checked])
    else:
        for one in checked:
            _show(one, verbose)
        if len(checked) > 1:
            _total(checked)
    state = worst(one.state for one in checked)
    if state.exit_code:
        raise click.exceptions.Exit(state.exit_code)


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
    failed, unknown, passed = (one.of(state) for state in (State.FAIL, State.CANNOT_TELL, State.PASS))
    warned = one.of(State.WARN)
    counts = f"{len(failed)} failed, {len(unknown)} unknown, {len(passed)} passed"
    counts += f", {output.count(len(warned), 'warning')}" if warned else ""
    output.line(f"{one.state.value}: {one.source}: {counts}")
    for verdict in [*failed, *unknown, *warned, *(passed if verbose else [])]:
        output.rule_verdict(verdict, rules()[verdict.details["rule"]].reason)
    if one.needs and (verbose or failed or unknown):
        output.line(f"  needs from the cluster: {', '.join(one.needs)}")


def _total(checked: list[Evaluation]) -> None:
    states = [one.state for one in checked]
    failed, unknown = states.count(State.FAIL), states.count(State.CANNOT_TELL)
    manifests = output.count(len(checked), "manifest")
    output.line(f"{manifests}: {failed} failed, {unknown} unknown, {len(states) - failed - unknown} passed")


def _as_data(one: Evaluation) -> dict[str, object]:
    return {
        "source": one.source,
        "verdict": one.state.value,
        "needs": one.needs,
        "verdicts": [verdict.as_dict() for verdict in one.verdicts],
    }
