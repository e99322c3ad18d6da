"""How `yard` prints: results on standard output, errors and progress on standard error.

Nothing else in tools/ prints. The text of a log, a pod, a manifest or a file may hold characters that control
a terminal, or that hide or reorder other text. They are shown, as \\x1b or \\u202e, and never sent. Secrets
are masked, except in data that the user asks for as it is (`raw`), such as a manifest.
"""

import json
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import click

from tools.core.secret_patterns import mask, masked
from tools.core.verdict import State, Verdict

LINE = 90  # characters of a value in a message
LONGEST_SECRET = 4096  # characters that are searched behind the end of a shortened text
TAB = 8  # columns
# All but the printable characters of ASCII and Latin-1, to be looked at one by one.
_SPECIAL = re.compile(r"[^ -~\xa0-\xac\xae-\xff]")


def visible(text: str, keep: str = "") -> str:
    """Return `text` with its control and format characters shown, except those in `keep`."""
    if text.isprintable():
        return text
    return _SPECIAL.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def line(text: str = "", raw: bool = False) -> None:
    """Print one line of a result at once, also into a pipe."""
    click.echo(_safe(text if raw else mask(text)))


def note(text: str) -> None:
    """Print one line of progress on standard error."""
    click.echo(_safe(mask(text)), err=True)


def notes(text: str) -> None:
    """Print the lines of a text as progress."""
    for one in mask(text).splitlines():  # before the split: a private key has several lines
        click.echo(_safe(one), err=True)


def _safe(text: str) -> str:
    return visible(text.expandtabs(TAB))


def block(text: str, raw: bool = False) -> None:
    """Print a text of several lines, such as a manifest or a diff."""
    told = text if raw else mask(text)
    # a diff of a file with Windows' line ends has to keep them
    shown = "\r\n".join(visible(part, keep="\n\t") for part in told.split("\r\n"))
    if shown:
        click.echo(shown, nl=not shown.endswith("\n"))
    if told != text:
        note("secrets are shown as ***, so this text differs")
    if shown != told:
        note("characters that control a terminal or hide text are shown as escapes, so this text differs")


def data(value: Any, indent: int | None = 2, raw: bool = False) -> None:
    """Print `value` as JSON; `indent=None` prints it as one line."""
    told = value if raw else masked(value)
    text = json.dumps(told, indent=indent, sort_keys=False, default=lambda one: mask(str(one)))
    click.echo(text.replace("\x7f", "\\u007f"))  # JSON itself escapes all other characters beyond ASCII


def ask(question: str, hidden: bool = False) -> str:
    """Return the user's answer to a question on standard error. Raises click.Abort at the end of input."""
    answer: str = click.prompt(visible(mask(question)), hide_input=hidden, err=True, default="", show_default=False)
    return answer


def agree(question: str, unasked: Exception, refused: Exception) -> None:
    """Return if the user answers a question with yes. Raises `unasked` without a terminal, else `refused`."""
    if not sys.stdin.isatty():
        raise unasked
    if ask(f"{question}? yes/no") != "yes":
        raise refused


def error(message: str, hint: str | None = None) -> None:
    """Print an error as one line. It may quote another program's message."""
    note(f"error: {message}")
    if hint:
        note(f"  hint: {hint}")


def exception(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected exception: sys.excepthook, which would send its text as it is."""
    notes("".join(traceback.format_exception(kind, problem, trace)))


def count(number: int, name: str, plural: str | None = None) -> str:
    """Return `1 pod` or `2 pods`. `plural` is for names that need more than an s."""
    return f"{number:,} {name if number == 1 else plural or name + 's'}"


def short(value: Any, limit: int = LINE) -> str:
    """Return a value as one line of at most `limit` characters, with secrets masked before it is cut."""
    text = mask(" ".join(str(value).split())[: limit + LONGEST_SECRET])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def verdict(result: Verdict, as_json: bool = False) -> None:
    """Print a verdict with its evidence and remedy. The caller exits with `result.state.exit_code`."""
    if as_json:
        data(result.as_dict())
        return
    line(f"{result.state.value}: {result.summary}")
    for item in result.evidence:
        line(f"  {item}")
    for number, text in enumerate((result.remedy or "").splitlines()):
        line(f"       {text}" if number else f"  fix: {text}")


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
