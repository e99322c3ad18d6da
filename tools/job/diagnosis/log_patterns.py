"""The patterns of log_patterns.yaml. The file is read when the first log is."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from tools.core.tables import load


@dataclass(frozen=True)
class Sign:
    """One pattern of a class. `stack` must match the report's stack too. `fix` replaces the remedy."""

    match: re.Pattern[str]
    stack: re.Pattern[str] | None
    fix: str | None


@dataclass(frozen=True)
class Hit:
    """Where a sign was found in a report's text: the words from `start` to `end` prove the class."""

    start: int
    end: int
    fix: str | None = None


@dataclass(frozen=True)
class Row:
    """A class of failure and its signs. `words` has all patterns as one, to be tried first."""

    kind: str
    words: re.Pattern[str]
    signs: tuple[Sign, ...]

    def search(self, text: str, stack: str = "") -> Hit | None:
        """Return the first sign in a report's text and stack."""
        if not self.words.search(text):
            return None
        for sign in self.signs:
            found = sign.match.search(text)
            if found and (sign.stack is None or sign.stack.search(stack)):
                return Hit(*found.span(), sign.fix)
        return None


@functools.cache
def document() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = load("job/diagnosis/log_patterns.yaml")
    return found


@functools.cache
def classes() -> tuple[Row, ...]:
    """Return the classes of failure in order: the first that matches a report counts."""
    return tuple(
        Row(row["class"], _any_of(row["patterns"]), tuple(map(_sign, row["patterns"])))
        for row in document()["classes"]
    )


@functools.cache
def by_class(table: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the classes of `words`, `places` or `subjects`; the first row that matches counts."""
    return tuple((row["class"], re.compile(row["match"])) for row in document()[table])


@functools.cache
def lines(table: str) -> re.Pattern[str]:
    """Return the pattern of the lines that `runtime`, `hints`, `ends` or `harmless` describes."""
    return _any_of(document()[table])


def _sign(pattern: dict[str, str]) -> Sign:
    stack = re.compile(pattern["stack"]) if "stack" in pattern else None
    return Sign(re.compile(pattern["match"]), stack, pattern.get("fix"))


def _any_of(patterns: list[dict[str, str]]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern['match']})" for pattern in patterns))
