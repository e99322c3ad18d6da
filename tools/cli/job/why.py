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
  yard job why --log rank0.log rank1.log.gz explain logs alone, one file for each rank; - is standard input
  yard job why --log train.log --exit-code 137

With --log, no cluster and no kubeconfig is needed. Evidence has the form FILE:LINE.

\b
Exit codes: 0 healthy, 1 a cause was found, 2 bad input, 3 unknown.
"""

from pathlib import Path
from typing import NoReturn

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job.diagnosis import log_files
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.snapshot import collect, lookup, snapshot
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="the cause why a job does not train")
@click.argument("names", nargs=-1, metavar="[JOB|CELL]")
@_options.cluster
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="A saved snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Save the snapshot.")
@click.option("--log", "logs", multiple=True, metavar="FILE...", help="Explain logs, also gzip'd ones.")
@click.option("--exit-code", "code", type=click.IntRange(0, 255), help="With --log: the container's exit code.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the other causes and what was checked.")
@_options.as_json
def command(
    kubectl: Kubectl,
    names: tuple[str, ...],
    recorded: Path | None,
    keep: Path | None,
    logs: tuple[str, ...],
    code: int | None,
    verbose: bool,
    as_json: bool,
) -> None:
    if logs:
        if recorded or keep:
            raise UserError("--log reads logs only", "leave out --from and --save")
        _explain_logs([*logs, *names], code, verbose, as_json)
    if code is not None or len(names) > 1:
        raise UserError("--exit-code and several names need --log", "yard job why --log FILE... [--exit-code N]")
    job = names[0] if names else None
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
        output.line(f"{seen.namespace}/{seen.name} ({seen.uid})")
        _show(found, verbose)
    raise click.exceptions.Exit(found.verdict.state.exit_code)


def _explain_logs(names: list[str], code: int | None, verbose: bool, as_json: bool) -> NoReturn:
    if len(names) > log_files.MOST:
        raise UserError(
            f"{len(names)} logs, at most {log_files.MOST} are read", "choose those of the ranks that failed"
        )
    found = log_files.explain(map(log_files.read, names), code)
    if as_json:
        output.data({"logs": names, "exit_code": code, **found.verdict.as_dict()})
    else:
        _show(found, verbose)
    raise click.exceptions.Exit(found.verdict.state.exit_code)


def _show(found: Explanation, verbose: bool) -> None:
    if not found.causes:
        output.line(f"{found.name.upper()}: {found.summary}")
    else:
        first = found.causes[0]
        output.line(f"CAUSE {first.kind}: {first.summary}")
        for line in first.evidence:
            output.line(f"  {line}")
        output.line(f"  fix: {first.remedy}")
        if first.confidence:
            output.line(f"  confidence: {first.confidence}")
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
