"""The class of a report that no pattern knows: by what its words, and the code that raised it, are about.

Errors are countless, but their subjects are few. A message names its subject (an option, a column of the
data, a version), and the frames of its traceback are in files and functions that are named after what they do
(`training_args.py`, `load_state_dict`). log_topics.yaml has these names for each class. Each one that is
found gives its class points, and the class with the most points counts.
"""

import functools
import re
from dataclasses import dataclass
from typing import Any

from tools.core.tables import load
from tools.job.diagnosis.log_failures import Report

SUBJECT = 90  # characters at the begin of a message, where its subject mostly is
OUTER = 6  # frames around the innermost one that tell what the program was doing
ENOUGH, ENOUGH_TOLD = 3, 2  # points: two facts that agree; for what the code itself complains of, one
TYPE, PACKAGE, CODE = 4, 4, 2  # points of an exception's type, of the innermost frame's package, of its names
_TYPE = re.compile(r"((?:\w+\.)*\w+)(?::|$)")
_RAISES = re.compile(r"\| (?:raise\b|assert\b)")
# What code raises that finds its input wrong. A key that is missing is mostly missing in a file.
_COMPLAINT = re.compile(r"(?:(?:Value|NotImplemented|Assertion|Key|FileNotFound)Error\b|Exception(?:: |$))")


@dataclass(frozen=True)
class Topic:
    """What a class is about: types of exceptions, words of messages, names in code, and packages.

    `faults` count where some words are found, `phases` where the code itself has raised the exception.
    """

    kind: str
    weight: int
    types: re.Pattern[str] | None
    words: tuple[re.Pattern[str], ...]
    faults: re.Pattern[str] | None
    names: re.Pattern[str] | None
    phases: re.Pattern[str] | None
    packages: re.Pattern[str] | None

    def points(self, report: Report) -> int:
        """Return how much of a report is about this class: the exception's type, the message, and the frames."""
        typed = report.exception and self.types and self.types.match(report.text)
        return (TYPE if typed else 0) + self.in_words(report) + self.in_code(report)

    def in_words(self, report: Report) -> int:
        """Return the points of the message."""
        raised = _TYPE.match(report.text) if report.exception else None
        slip = raised and raised[1].rpartition(".")[2] + report.text[raised.end(1) :]
        if slip and re.match(table("slips"), slip):  # what Python says of a mistake in the program
            return 0
        message = report.text[raised.end() :] if raised else report.text
        found = [hit.start() for words in self.words if (hit := words.search(message))]
        faulty = 1 if found and self.faults and self.faults.search(message) else 0
        return self.weight * sum(2 if start < SUBJECT else 1 for start in found) + faulty

    def in_code(self, report: Report) -> int:
        """Return the points of the frames."""
        known = [names for names in (self.names, self.phases if _told(report) else None) if names]
        inner, outer = _near(report.place), [*map(_near, report.stack.splitlines()[-OUTER - 1 : -1])]
        points = (self.packages and PACKAGE * bool(self.packages.search(report.place))) or 0
        points += CODE if any(names.search(inner) for names in known) else 0
        return points + any(names.search(frame) for names in known for frame in outer)


def _told(report: Report) -> bool:
    """Return whether the code itself has raised the exception, because its input is wrong."""
    return bool(_RAISES.search(report.place) or _COMPLAINT.match(report.text))


def _near(place: str) -> str:
    """Return a place in small letters, of its path only the file and its directory."""
    path, mark, code = place.partition(" | ")
    return ("/".join(path.rsplit("/", 2)[-2:]) + mark + code).lower()


@functools.cache
def topics() -> tuple[Topic, ...]:
    """Return the topics of log_topics.yaml; of two with equal points the first one counts."""
    return tuple(_topic(row) for row in table("topics"))


def table(name: str) -> Any:
    """Return a part of log_topics.yaml."""
    return load("job/diagnosis/log_topics.yaml")[name]


def _topic(row: dict[str, Any]) -> Topic:
    def one(key: str) -> re.Pattern[str] | None:
        return re.compile(row[key]) if key in row else None

    words = tuple(map(re.compile, row.get("words", [])))
    parts = [one(key) for key in ("faults", "names", "phases", "packages")]
    return Topic(row["class"], row.get("weight", 1), one("types"), words, *parts)


def of(report: Report) -> str | None:
    """Return the class that a report is about, None if too little shows it."""
    most = max(topics(), key=lambda topic: topic.points(report))
    enough = ENOUGH_TOLD if _told(report) and most.in_code(report) else ENOUGH
    told = report.exception or most.kind != "script"
    return most.kind if told and most.points(report) >= enough else None
