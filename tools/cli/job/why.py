"""Say why a job is pending, failing, hung or slow: one cause with its evidence and what to do.

The causes are looked up and recomputed from the job's objects, nodes, logs and run directory. A job in good
health is said to be healthy; where nothing explains it, the answer is CANNOT TELL with what was looked at.

\b
Examples:
  yard job why
  yard job why cpu-llama-tiny-train -v
  yard job why overlays/p5/llama-3-1-8b -n team-a
  yard job why --save evidence/             keep what it was judged by
  yard job why --from evidence/             judge it again, without a cluster

\b
Exit codes: 0 healthy, 1 a cause was found, 3 it cannot be told.
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli.job import _options
from tools.core import output
from tools.job.diagnosis.explain import Answer, Explanation, explain
from tools.job.snapshot import collect, lookup, snapshot
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="why a job does not train")
@_options.job
@_options.cluster
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="A kept snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the snapshot.")
@click.option("-v", "--verbose", is_flag=True, help="Print also the other causes and what was looked at.")
@_options.as_json
def command(
    kubectl: Kubectl, job: str | None, recorded: Path | None, keep: Path | None, verbose: bool, as_json: bool
) -> None:
    seen = snapshot.load(recorded) if recorded else collect.collect(kubectl, lookup.job_name(kubectl, job))
    if keep:
        seen.save(keep)
    found = explain(seen)
    if as_json:
        identity = {"job": seen.name, "namespace": seen.namespace, "uid": seen.uid}
        output.data({**identity, **found.verdict.as_dict()})
    else:
        _show(seen, found, verbose)
    raise click.exceptions.Exit(found.verdict.state.exit_code)


def _show(seen: snapshot.Snapshot, found: Explanation, verbose: bool) -> None:
    output.line(f"{seen.namespace}/{seen.name} ({seen.uid})")
    if found.state is not Answer.CAUSE:
        output.line(f"{found.state.value.upper()}: {found.summary}")
    else:
        first = found.causes[0]
        output.line(f"CAUSE {first.kind}: {first.summary}")
        for line in first.evidence:
            output.line(f"  {line}")
        output.line(f"  what to do: {first.remedy}")
        others = ", ".join(cause.kind for cause in found.causes[1:])
        if others and not verbose:
            output.line(f"  it may explain also: {others} (-v shows them)")
    for cause in found.causes[1:] if verbose else []:
        output.line(f"then {cause.kind}: {cause.summary}")
        for line in cause.evidence:
            output.line(f"  {line}")
    if verbose or found.state is Answer.CANNOT_TELL:
        for line in found.looked:
            output.line(f"  looked at: {line}")
