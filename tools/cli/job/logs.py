"""Print the logs of a job's pods, merged by time, each line with its pod."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import logs, volume_reader
from tools.job.logs import Wanted
from tools.job.ranks import pod_of
from tools.job.snapshot import JobPod, Line, collect
from tools.kube import Kubectl


@dataclass(frozen=True)
class Form:
    """How lines are printed: as JSON, and raw, which is without masking secrets."""

    as_json: bool
    raw: bool


@_options.cluster
def command(
    kubectl: Kubectl,
    job: str | None,
    rank: int | None,
    follow: bool,
    previous: bool,
    since: str | None,
    tail: int | None,
    grep: str | None,
    first_failure: bool,
    volume: bool,
    raw: bool,
    as_json: bool,
) -> None:
    form = Form(as_json, raw)
    wanted = Wanted(previous, _since(since), tail, _pattern(grep))
    if first_failure and follow:
        raise UserError("--first-failure reads old lines and --follow new ones: give one of them")
    if previous and follow:
        raise UserError("--previous reads ended containers and --follow running ones: give one of them")
    if volume and rank is None:
        raise UserError("--volume reads the log of one rank", "add --rank N")
    if volume and (follow or previous or since or first_failure):
        raise UserError("--volume reads a file of the run directory: use it with --rank, --tail and --grep only")
    ranked = rank is not None and not volume
    here, seen = collect.find(kubectl, job, logs=ranked, run=ranked)
    if volume:
        assert rank is not None
        with volume_reader.reading(here, seen, output.note) as pod:
            lines = logs.from_volume(here, pod, rank, tail)
        for line in filter(wanted.matches, lines):
            _print(line, line.text, form, rank)
        return
    pods = seen.require_pods()
    chosen = pods if rank is None else [pod_of(seen, rank)]
    if previous:
        chosen = [pod for pod in chosen if pod.restarts]
        if not chosen:
            raise UserError(f"no container of {seen.name} was restarted", code=3)
    if follow:
        for pod in chosen:
            if not (pod.running or pod.end):
                output.note(f"{pod.name}: not seen: {pod.waits_for}")
        _print_all(logs.follow(here, chosen, wanted), chosen, form)
        return
    found, unseen = logs.once(here, chosen, wanted)
    if first_failure:
        _print_failure(found, chosen, form)
    else:
        _print_all(found, chosen, form)
    for name, reason in unseen.items():
        output.note(f"{name}: not seen: {reason}")
    if unseen:
        raise click.exceptions.Exit(3)


def _since(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"(\d+(\.\d+)?(s|m|h))+", text):
        raise UserError(f"--since {text}: not a duration", "write 30s, 5m or 1h30m")
    return text


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as problem:
        raise UserError(f"--grep {text}: {problem}") from None


def _facts(line: Line, rank: int | None = None) -> dict[str, Any]:
    """Return a line as plain data; `rank` is used if the line names none."""
    time = line.time.isoformat() if line.time else None
    own = line.rank if line.rank is not None else rank
    return {"time": time, "pod": line.pod, "rank": own, "text": line.text}


def _print_all(lines: Iterable[Line], pods: list[JobPod], form: Form) -> None:
    names = {pod.name: pod.short for pod in pods}
    width = max(map(len, names.values()))
    for line in lines:
        _print(line, f"{names[line.pod]:<{width}} | {line.text}", form)


def _print(line: Line, text: str, form: Form, rank: int | None = None) -> None:
    if form.as_json:
        output.data(_facts(line, rank), indent=None, raw=form.raw)
    else:
        output.line(text, raw=form.raw)


def _print_failure(lines: Iterable[Line], pods: list[JobPod], form: Form) -> None:
    found = logs.first_failure(lines)
    if found is None:
        output.line("null" if form.as_json else "no line of any log reports a failure")
        raise click.exceptions.Exit(1)
    around, failure = found
    if form.as_json:
        facts = {"kind": failure.kind, "pod": failure.line.pod, "line": failure.line.text}
        output.data({**facts, "around": [_facts(line) for line in around]}, raw=form.raw)
        return
    output.line(f"{failure.kind}: first seen in {failure.line.pod}")
    _print_all(around, pods, form)
