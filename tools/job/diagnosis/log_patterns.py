"""The patterns of log_patterns.yaml and log_forms.yaml. The files are read when the first log is."""

import functools
import re
from dataclasses import dataclass
from typing import Any

from tools.core.tables import load


@dataclass(frozen=True)
class Sign:
    """One pattern of a class. `stack` must match the report's stack too. `fix` and `says` replace the class's words."""

    match: re.Pattern[str]
    stack: re.Pattern[str] | None
    fix: str | None
    says: str | None


@dataclass(frozen=True)
class Row:
    """A class of failure and its signs. `words` has all patterns as one, to be tried first."""

    kind: str
    words: re.Pattern[str]
    signs: tuple[Sign, ...]

    def search(self, text: str, stack: str = "") -> tuple[re.Match[str], Sign] | None:
        """Return the words that prove the class in a report's text, and their sign."""
        for sign in self.signs if self.words.search(text) else ():
            found = sign.match.search(text)
            if found and (sign.stack is None or sign.stack.search(stack)):
                return found, sign
        return None


@functools.cache
def document() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = load("job/diagnosis/log_patterns.yaml")
    return found


@functools.cache
def classes() -> tuple[Row, ...]:
    """Return the classes of failure in order: the first that matches a report counts."""
    return tuple(
        Row(row["class"], _any_of(row["patterns"]), tuple(map(_sign, row["patterns"]))) for row in document()["classes"]
    )


@functools.cache
def lines(table: str) -> re.Pattern[str]:
    """Return the pattern of the lines that `runtime`, `hints`, `ends` or `harmless` describes."""
    return _any_of(document()[table])


def may_report(small: str) -> bool:
    """Return whether a line in small letters has a word that a report needs."""
    return any(word in small for word in load("job/diagnosis/log_topics.yaml")["report_words"])


@functools.cache
def form(name: str) -> re.Pattern[str]:
    """Return a form of lines of log_forms.yaml."""
    return re.compile("".join(load("job/diagnosis/log_forms.yaml")[name]))


def of_program(text: str) -> str | None:
    """Return the class of what the program of a line of `runtime` or `hints` mostly reports."""
    rows = (row for table in ("runtime", "hints") for row in document()[table] if "class" in row)
    return next((row["class"] for row in rows if re.search(row["match"], text)), None)


def of_signal(signal: int) -> Sign | None:
    """Return what is known of a signal by the words that a shell or Python has for it; None for other signals."""
    words = {2: "KeyboardInterrupt", 7: "Bus error"}.get(signal)
    found = (row.search(words) for row in classes() if words)
    return next((hit[1] for hit in found if hit), None)


def _sign(pattern: dict[str, str]) -> Sign:
    stack = re.compile(pattern["stack"]) if "stack" in pattern else None
    says = pattern["says"] if "fix" in pattern else None  # the class's meaning belongs to the class's remedy
    return Sign(re.compile(pattern["match"]), stack, pattern.get("fix"), says)


def _any_of(patterns: list[dict[str, str]]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern['match']})" for pattern in patterns))
