"""What the fault suite is to show, beside what its rows have shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.bed import INTERVAL
from tests.faults.processes import HANG_SECONDS

Row = dict[str, Any]
SLACK_SECONDS = 5.0
NAMED = re.compile(r"named as hang after (\d+\.\d) s")
STALL = re.compile(r"an asynchronous save takes the time of (\d+\.\d+) steps")
HEAD = ["goal", "rows", "measured", "verdict"]


@dataclass(frozen=True)
class Goal:
    """A goal for some rows, which must all be held; `measure` returns what they show, and whether that is enough."""

    name: str
    numbers: tuple[int, ...]
    measure: Callable[[list[Row]], tuple[str, bool]]


def _points(least: int) -> Callable[[list[Row]], tuple[str, bool]]:
    def measure(found: list[Row]) -> tuple[str, bool]:
        count = sum(side["points"] for side in found)
        return f"{count:,} points", count >= least

    return measure


def _seeds(least: int) -> Callable[[list[Row]], tuple[str, bool]]:
    def measure(found: list[Row]) -> tuple[str, bool]:
        return f"{found[0]['seeds']} of {least} trials", found[0]["seeds"] >= least

    return measure


def _lost(most: int) -> Callable[[list[Row]], tuple[str, bool]]:
    def measure(found: list[Row]) -> tuple[str, bool]:
        lost = [side["lost"] for side in found if side["lost"] is not None]
        if not lost:
            return "", False
        return f"at most {max(lost)} steps in {sum(side['seeds'] for side in found)} trials", max(lost) <= most

    return measure


def _named(found: list[Row]) -> tuple[str, bool]:
    seconds = [float(one) for side in found for one in NAMED.findall(side["seen"])]
    slowest = max(seconds, default=0.0)
    return f"after {slowest} s", len(seconds) == len(found) and slowest <= HANG_SECONDS + SLACK_SECONDS


def _stall(found: list[Row]) -> tuple[str, bool]:
    told = STALL.search(found[0]["seen"])
    return (f"{told[1]} steps", float(told[1]) <= 1) if told else ("", False)


GOALS = (
    Goal("no torn or silently wrong load in 1,000 points", (23, 24, 25, 26, 31, 35, 37, 38), _points(1000)),
    Goal("every flipped bit is refused", (25,), _points(1)),
    Goal("bitwise equal after a resume, 10 seeds of each script and kind of save", (41,), _seeds(80)),
    Goal("SIGTERM loses no step", (5, 6, 7, 8), _lost(0)),
    Goal("SIGKILL loses at most one interval", (1, 10, 11), _lost(INTERVAL)),
    Goal(f"a hang is named within its limit of {HANG_SECONDS} s and {SLACK_SECONDS:.0f} s more", (12, 13), _named),
    Goal("a save beside training takes the time of one step at most", (42,), _stall),
    Goal("0.9 of Young/Daly's share of the time, and more than the control's", (42,), _seeds(3)),
)


def lines(rows: list[Row]) -> list[str]:
    """Return the goals as a Markdown table; a goal is not measured while one of its rows was not tried."""
    by_number = {row["number"]: row.get("trainyard", {}) for row in rows}
    told = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for goal in GOALS:
        found = [by_number.get(number, {}) for number in goal.numbers]
        verdicts = {side.get("verdict") for side in found}
        measured, enough = goal.measure(found) if verdicts <= {"held", "not held"} else ("", False)
        if "not held" in verdicts:
            verdict = "**not reached**"
        elif verdicts != {"held"}:
            verdict = "not measured"
        else:
            verdict = "reached" if enough else "not reached yet"
        told.append(f"| {goal.name} | {', '.join(map(str, goal.numbers))} | {measured} | {verdict} |")
    return told
