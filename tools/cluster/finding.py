"""The result of one named check. A command prints all of its findings as a table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.aws import AwsError
from tools.core import State, Verdict, output, worst


@dataclass(frozen=True, kw_only=True)
class Finding(Verdict):
    """The verdict of the check `name`."""

    name: str


def good(name: str, summary: str, *evidence: str) -> Finding:
    return Finding(State.PASS, summary, list(evidence), name=name)


def warn(name: str, summary: str, remedy: str | None, *evidence: str) -> Finding:
    return Finding(State.WARN, summary, list(evidence), remedy, name=name)


def bad(name: str, summary: str, remedy: str | None, *evidence: str) -> Finding:
    return Finding(State.FAIL, summary, list(evidence), remedy, name=name)


def unknown(name: str, summary: str, remedy: str | None = None, *evidence: str) -> Finding:
    return Finding(State.CANNOT_TELL, summary, list(evidence), remedy, name=name)


def run(name: str, check: Callable[[], Finding]) -> Finding:
    """Return the finding of `check`, or CANNOT TELL where AWS denies access or does not answer.

    Raises AwsError where no other check would get an answer either.
    """
    try:
        return check()
    except AwsError as problem:
        if problem.hides_all:
            raise
        return unknown(name, problem.message, problem.hint)


def show(findings: list[Finding]) -> None:
    """Print a line for each finding, with its evidence and remedy below it."""
    width = max((len(one.name) for one in findings), default=0)
    for one in findings:
        output.line(f"{one.state.value:<11}  {one.name:<{width}}  {one.summary}", state=one.state)
        for line in one.evidence:
            output.line(f"{'':<11}    {line}")
        if one.remedy:
            output.line(f"{'':<11}    fix: {one.remedy}")


def report(findings: list[Finding], as_json: bool) -> State:
    """Print findings as a table or as JSON and return their overall state."""
    state = worst(one.state for one in findings)
    if as_json:
        output.data({"verdict": state.value, "findings": as_data(findings)})
    else:
        show(findings)
    return state


def as_data(findings: list[Finding]) -> list[dict[str, Any]]:
    shown = ("summary", "evidence", "remedy")
    return [
        {"name": one.name, "level": one.state.value, **{key: getattr(one, key) for key in shown}} for one in findings
    ]
