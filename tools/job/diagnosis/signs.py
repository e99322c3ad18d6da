"""The tables of signs.yaml: what messages of Kubernetes and of the programs around it mean for a job."""

import functools
import re
from dataclasses import dataclass

from tools.core.tables import load
from tools.job.diagnosis.log_patterns import form


@dataclass(frozen=True)
class Sign:
    """A pattern of messages, the kind of cause that it stands for, its meaning, and a remedy of its own.

    The rows of `table` stand for narrower kinds.
    """

    match: re.Pattern[str]
    cause: str = ""
    says: str = ""
    fix: str | None = None
    table: str = ""


@functools.cache
def tables() -> dict[str, tuple[Sign, ...]]:
    """Return the signs by the name of their table. The file is read when the first message is."""
    return {name: tuple(_sign(**row) for row in rows) for name, rows in load("job/diagnosis/signs.yaml").items()}


def _sign(match: str | list[str], **values: str) -> Sign:
    return Sign(re.compile(match if isinstance(match, str) else "|".join(match)), **values)


def first(table: str, message: str) -> Sign | None:
    """Return the first sign of a table in a message, None if there is none."""
    return next((sign for sign in tables()[table] if sign.match.search(message)), None)


def cause_of(table: str, message: str, default: str = "") -> str:
    """Return the kind of cause of the first sign of a table in a message, `default` if there is none."""
    sign = first(table, message)
    return sign.cause if sign else default


def event(line: str) -> Sign | None:
    """Return the sign of an event's line, as kubectl prints it; None for other lines."""
    sign = first("events", line) if form("event").search(line) else None
    inner = first(sign.table, line) if sign and sign.table else None
    return inner or sign
