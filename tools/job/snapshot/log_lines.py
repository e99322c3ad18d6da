"""Lines of container logs: their time, pod and rank."""

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from tools.core import moment
from training.run.trainer_logs import LONGEST

# The prefix of `kubectl logs --timestamps`.
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ?(.*)$", re.DOTALL)
# The rank that wrote a line: torchrun --tee (`[default3]:`), torch (`[rank3]:`), TorchX (`[3]:`), ours.
_RANK = re.compile(r"^\s*\[(?:rank|default|trainer|\w+-)?(\d+)\]:|^\s*rank (\d+): ")
LONGEST_JSON = 1 << 16  # characters that are kept of a line of JSON; of others LONGEST
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Line:
    """One line of a log. `pod` is empty for a line of a file. `number` is its place in the log, from 1."""

    text: str
    time: datetime | None = None
    pod: str = ""
    number: int = 0

    @property
    def rank(self) -> int | None:
        """The rank that the line names, None if it names none."""
        found = _RANK.match(self.text)
        return int(found[1] or found[2]) if found else None


def read(text: str, pod: str = "") -> list[Line]:
    """Return the lines of a log; kubectl's timestamp becomes the line's time."""
    rows = enumerate(text.removesuffix("\n").split("\n"), 1) if text else []
    return [line_of(line, pod, number) for number, row in rows for line in row.splitlines() or [""]]


def line_of(text: str, pod: str = "", number: int = 0) -> Line:
    """Return one line without colours, and without text that a progress bar has overwritten."""
    found = _STAMP.match(text)
    words = found[2] if found else text
    shown = _COLOUR.sub("", words.rstrip("\r\n").rpartition("\r")[2] or words.strip("\r\n"))
    kept = cut(shown, LONGEST_JSON if shown.startswith("{") else LONGEST)
    return Line(kept, moment(found[1]) if found else None, pod, number)


def cut(text: str, longest: int = LONGEST) -> str:
    """Return `text`, or its first characters and how many are left out.

    Patterns are searched in each line of each pod, so what one line costs must have a bound.
    """
    return text if len(text) <= longest else f"{text[:longest]}... (cut: {len(text)} characters)"


def merged(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Yield the lines of several logs in time order; a line without a time follows the line before it."""
    filled = [_filled(log) for log in logs]
    return heapq.merge(*filled, key=lambda line: line.time.timestamp() if line.time else 0.0)


def last_line(text: str) -> str:
    """Return the last line of what a program printed."""
    return (text.strip().splitlines() or ["no answer"])[-1]


def _filled(log: Iterable[Line]) -> Iterator[Line]:
    last: datetime | None = None
    for line in log:
        last = line.time or last
        yield line if line.time else replace(line, time=last)
