"""The patterns of log_patterns.yaml. The file is read when the first log is."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

SOURCE = Path(__file__).with_suffix(".yaml")
Row = tuple[str, re.Pattern[str]]


@functools.cache
def document() -> dict[str, list[dict[str, Any]]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser takes 10 ms, Python's 120
    found: dict[str, list[dict[str, Any]]] = yaml.load(SOURCE.read_text(encoding="utf-8"), Loader=loader)
    return found


@functools.cache
def classes() -> tuple[Row, ...]:
    """Return each class of failure and its patterns as one; the first row that matches a report counts."""
    return tuple((row["class"], _any_of(row["patterns"])) for row in document()["classes"])


@functools.cache
def places() -> tuple[Row, ...]:
    """Return classes of failure by the place that raised an exception; the first row that matches counts."""
    return tuple((row["class"], re.compile(row["match"])) for row in document()["places"])


@functools.cache
def runtime() -> re.Pattern[str]:
    """Return the pattern of lines that report a failure without a level or an exception."""
    return _any_of(document()["runtime"])


@functools.cache
def hints() -> re.Pattern[str]:
    """Return the pattern of warnings that healthy jobs write too."""
    return _any_of(document()["hints"])


def _any_of(patterns: list[dict[str, str]]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern['match']})" for pattern in patterns))
