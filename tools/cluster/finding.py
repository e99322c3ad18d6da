"""What one look found, with its evidence and what to do; several of them as one answer."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.aws.session import AwsError
from tools.core import output


class Level(enum.Enum):
    """How it stands; the value is how it is printed. A WARN is good enough to go on with."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    CANNOT_TELL = "CANNOT TELL"


@dataclass(frozen=True)
class Finding:
    """One finding about `name`."""

    name: str
    level: Level
    summary: str
    evidence: list[str] = field(default_factory=list)
    remedy: str | None = None


def good(name: str, summary: str, *evidence: str) -> Finding:
    """Return a PASS."""
    return Finding(name, Level.PASS, summary, list(evidence))


def warn(name: str, summary: str, remedy: str | None, *evidence: str) -> Finding:
    """Return a WARN."""
    return Finding(name, Level.WARN, summary, list(evidence), remedy)


def bad(name: str, summary: str, remedy: str | None, *evidence: str) -> Finding:
    """Return a FAIL."""
    return Finding(name, Level.FAIL, summary, list(evidence), remedy)


def unclear(name: str, summary: str, remedy: str | None = None, *evidence: str) -> Finding:
    """Return a CANNOT TELL."""
    return Finding(name, Level.CANNOT_TELL, summary, list(evidence), remedy)


def look(name: str, check: Callable[[], Finding]) -> Finding:
    """Return what `check` finds; where AWS does not let it look, that and not a failure."""
    try:
        return check()
    except AwsError as problem:
        if problem.hides_all:
            raise
        return unclear(name, problem.message, problem.hint)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the one level of all: a FAIL outweighs what cannot be told, which outweighs a WARN."""
    levels = {one.level for one in findings}
    order = (Level.FAIL, Level.CANNOT_TELL, Level.WARN)
    return next((level for level in order if level in levels), Level.PASS)


def exit_code(level: Level) -> int:
    """Return the process exit code of a level."""
    return {Level.FAIL: 1, Level.CANNOT_TELL: 3}.get(level, 0)


def show(findings: list[Finding]) -> None:
    """Print findings, one a line, with what stands behind all that are not a PASS."""
    width = max((len(one.name) for one in findings), default=0)
    for one in findings:
        output.line(f"{one.level.value:<11}  {one.name:<{width}}  {one.summary}")
        for line in one.evidence:
            output.line(f"{'':<11}    {line}")
        if one.remedy:
            output.line(f"{'':<11}    what to do: {one.remedy}")


def as_data(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return findings as plain data."""
    return [asdict(one) | {"level": one.level.value} for one in findings]
