"""Explain why a job is pending, failing, hung or slow: one cause with its evidence and a fix."""

from pathlib import Path

from tools.cli.job import _options
from tools.core import State, UserError, output
from tools.job.diagnosis import log_files
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.snapshot import collect, lookup, snapshot
from tools.kube.kubectl import Kubectl


@_options.cluster
def command(
    kubectl: Kubectl,
    names: tuple[str, ...],
    recorded: Path | None,
    keep: Path | None,
    logs: tuple[str, ...],
    code: int | None,
    verbose: bool,
    as_json: bool,
) -> int:
    if logs:
        if recorded or keep:
            raise UserError("--log reads logs only", "leave out --from and --save")
        return _explain_logs([*logs, *names], code, verbose, as_json)
    if code is not None or len(names) > 1:
        raise UserError("--exit-code and several names need --log", "yard job why --log FILE... [--exit-code N]")
    job = names[0] if names else None
    seen = snapshot.load(recorded) if recorded else collect.find(kubectl, job, around=True)[1]
    if recorded and job and not (lookup.is_cell(job) or seen.live.is_called(job.rpartition("/")[2])):
        raise UserError(f"{recorded} is a snapshot of {seen.name}, and not of {job}", "leave out the job's name")
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
        output.data({"job": seen.name, "namespace": seen.namespace, "uid": seen.uid, **found.verdict.as_dict()})
    else:
        output.line(f"{seen.namespace}/{seen.name} ({seen.uid})")
        _show(found, verbose)
    return found.verdict.state.exit_code


def _explain_logs(names: list[str], code: int | None, verbose: bool, as_json: bool) -> int:
    if len(names) > log_files.MOST:
        raise UserError(
            f"{len(names)} logs, at most {log_files.MOST} are read", "choose those of the ranks that failed"
        )
    found = log_files.explain(map(log_files.read, names), code)
    if as_json:
        output.data({"logs": names, "exit_code": code, **found.verdict.as_dict()})
    else:
        _show(found, verbose)
    return found.verdict.state.exit_code


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
    for line in found.retries:
        output.line(f"  retried: {line}")
    for cause in found.causes[1:] if verbose else []:
        output.line(f"then {cause.kind}: {cause.summary}")
        for line in cause.evidence:
            output.line(f"  {line}")
    if verbose or found.state is State.CANNOT_TELL:
        for line in found.checked:
            output.line(f"  checked: {line}")
