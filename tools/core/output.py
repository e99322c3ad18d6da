"""How `yard` prints: results on standard output, errors and progress on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tools.core.verdict import State, Verdict

LINE = 90  # characters of a value in a message


def line(text: str = "") -> None:
    """Print one line of a result at once, also into a pipe."""
    click.echo(text)


def note(text: str) -> None:
    """Print one line of progress on standard error."""
    click.echo(text, err=True)


def data(value: Any) -> None:
    """Print `value` as JSON."""
    click.echo(json.dumps(value, indent=2, sort_keys=False, default=str))


def error(message: str, hint: str | None = None) -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)


def count(number: int, name: str, plural: str | None = None) -> str:
    """Return `1 pod` or `2 pods`. `plural` is for names that need more than an s."""
    return f"{number:,} {name if number == 1 else plural or name + 's'}"


def short(value: Any, limit: int = LINE) -> str:
    """Return a value as one line of at most `limit` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def verdict(result: Verdict, as_json: bool = False) -> None:
    """Print a verdict with its evidence and remedy. The caller exits with `result.state.exit_code`."""
    if as_json:
        data(result.as_dict())
        return
    line(f"{result.state.value}: {result.summary}")
    for item in result.evidence:
        line(f"  {item}")
    if result.remedy:
        line(f"  fix: {result.remedy}")


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return ["  ".join(row).rstrip() for row in padded]


def rule_verdict(result: Verdict, reason: str) -> None:
    """Print the verdict of a rule: its evidence and, unless it is a PASS, the rule's reason and the fix."""
    line(f"  {result.state.value} {result.details['rule']}: {result.summary}")
    for item in result.evidence:
        line(f"    {item}")
    if result.state is not State.PASS:
        line(f"    why: {reason}")
        if result.remedy:
            line(f"    fix: {result.remedy}")


def table(rows: Iterable[Sequence[str]], indent: str = "  ") -> None:
    """Print rows of cells as aligned columns."""
    for text in columns(rows):
        line(f"{indent}{text}")
