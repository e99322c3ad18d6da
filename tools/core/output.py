"""The one way in which `yard` prints: results on standard output, errors and progress on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from tools.core.verdict import Verdict


def line(text: str = "") -> None:
    """Print one line of a result, at once, so that a pipe sees it when it happens."""
    click.echo(text)


def note(text: str) -> None:
    """Print one line of progress on standard error."""
    click.echo(text, err=True)


def data(value: Any) -> None:
    """Print `value` as JSON."""
    click.echo(json.dumps(value, indent=2, sort_keys=False, default=str))


def error(message: str, hint: str | None = None) -> None:
    """Print the one `error:` line of a failed command, and its hint."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)


def count(number: int, name: str, plural: str | None = None) -> str:
    """Return `1 pod`, `2 pods`; `plural` where an s is not enough."""
    return f"{number:,} {name if number == 1 else plural or name + 's'}"


def verdict(result: Verdict, as_json: bool = False) -> None:
    """Print a verdict with its evidence and remedy; the caller exits with `result.state.exit_code`."""
    if as_json:
        data(result.as_dict())
        return
    line(f"{result.state.value}: {result.summary}")
    for item in result.evidence:
        line(f"  {item}")
    if result.remedy:
        line(f"  what to do: {result.remedy}")


def table(rows: Iterable[tuple[str, str]], indent: str = "  ") -> None:
    """Print pairs as two aligned columns; a pair with an empty name continues the one above."""
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        line(f"{indent}{name:<{width}}  {value}".rstrip())
