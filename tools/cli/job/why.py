"""Explain why a job is pending, failing, hung or slow: one cause with its evidence and a fix.

The cause is derived from the job's objects, events, nodes, logs and run directory. A job that makes progress
is HEALTHY. If no cause is found, the answer is CANNOT TELL with a list of what was checked. Data that cannot
be read is listed as not seen; it is never reported as a failure.

\b
Examples:
  yard job why
  yard job why cpu-llama-tiny-train -v
  yard job why overlays/p5/llama-3-1-8b -n team-a
  yard job why --save evidence/             save the snapshot that the answer is based on
  yard job why --from evidence/             explain it again, without a cluster

\b
Exit codes: 0 healthy, 1 a cause was found, 3 unknown.
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.snapshot import collect, lookup, snapshot
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="the cause why a job does not train")
@_options.job
@_options.cluster
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="A saved snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Save the snapshot.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the other causes and what was checked.")
@_options.as_json
def command(
    kubectl: Kubectl, job: str | None, recorded: Path | None, keep: Path | None, verbose: bool, as_json: bool
) -> None:
    seen = snapshot.load(recorded) if recorded else collect.collect(kubectl, lookup.find(kubectl, job))
    try:
        seen = seen.shareable()
        found = explain(seen)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        if recorded is None:
            raise
        raise UserError(f"{recorded}: incomplete snapshot: {problem!r}") from None
    if keep:
        seen.save(keep)
    if as_json:
        identity = {"job": seen.name, "namespace": seen.namespace, "uid": seen.uid}
        output.data({**identity, **found.verdict.as_dict()})
    else:
        _show(seen, found, verbose)
    raise click.exceptions.Exit(found.verdict.state.exit_code)


def _show(seen: snapshot.Snapshot, found: Explanation, verbose: bool) -> None:
    output.line(f"{seen.namespace}/{seen.name} ({seen.uid})")
    if not found.causes:
        output.line(f"{found.name.upper()}: {found.summary}")
    else:
        first = found.causes[0]
        output.line(f"CAUSE {first.kind}: {first.summary}")
        for line in first.evidence:
            output.line(f"  {line}")
        output.line(f"  fix: {first.remedy}")
        others = ", ".join(cause.kind for cause in found.causes[1:])
        if others and not verbose:
            output.line(f"  it may also explain: {others} (-v shows them)")
    for cause in found.causes[1:] if verbose else []:
        output.line(f"then {cause.kind}: {cause.summary}")
        for line in cause.evidence:
            output.line(f"  {line}")
    if verbose or found.state is State.CANNOT_TELL:
        for line in found.checked:
            output.line(f"  checked: {line}")
