"""The fault suite: its table, a few cheap faults, and that a fault that did not happen is never counted as held."""

from __future__ import annotations

import importlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.faults import goals, schedule, suite
from tests.faults.bed import ROOT, Bed, NoFaultError, NotTriedError, Outcome

TABLE = suite.read_table()


def test_the_table_has_every_fault_once_and_each_is_tried_or_says_why_not() -> None:
    assert [fault.number for fault in TABLE] == list(range(1, 44))
    for fault in TABLE:
        assert bool(fault.missing) != bool(fault.run or fault.tests), fault
        assert fault.missing or (fault.how and fault.bound), fault
        for name in (fault.run, fault.control):
            if name and not name.startswith("none: "):
                module, _, function = name.partition(":")
                assert callable(getattr(importlib.import_module(f"tests.faults.{module}"), function)), name
        for name in fault.tests:
            path, _, function = name.partition("::")
            text = (ROOT / path).read_text()
            assert not function or f"def {function}(" in text, name


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.parametrize("fault", [fault for fault in TABLE if fault.smoke], ids=lambda fault: fault.name)
def test_a_cheap_fault(fault: suite.Fault, tmp_path: Path) -> None:
    trial = suite.attempt(fault, "trainyard", 0, {}, tmp_path)
    if trial.verdict == "not tried":
        pytest.skip(trial.why)
    assert trial.verdict == "held", (trial.why, trial.outcome)


def test_a_skipped_test_is_not_tried_for_its_reason(tmp_path: Path) -> None:
    skipped = "@pytest.mark.skip(reason='no such server')\ndef test_not(): pass\n"
    (tmp_path / "test_it.py").write_text(f"import pytest\n\ndef test_runs(): pass\n\n{skipped}")
    shutil.copy(ROOT / "conftest.py", tmp_path)  # it prints the count
    with pytest.raises(NotTriedError, match=r"1 passed, 0 failed, 1 skipped: no such server$"):
        suite.tested((str(tmp_path / "test_it.py"),))


def held(bed: Bed) -> Outcome:
    return Outcome(True, "seen", "whole", lost=bed.seed, seconds=1.0, points=3)


def broken(bed: Bed) -> Outcome:
    return Outcome(bed.plain or bed.seed > 0, "seen", "a mixture")


def never(bed: Bed) -> Outcome:
    raise NoFaultError("it ended before")


def impossible(bed: Bed) -> Outcome:
    raise NotTriedError("no cgroup can be made here")


def wrong(bed: Bed) -> Outcome:
    raise AssertionError("not in 90 s")


def broken_or_never(bed: Bed) -> Outcome:
    return never(bed) if bed.seed else Outcome(False, "seen", "a mixture")


def impossible_or_never(bed: Bed) -> Outcome:
    return never(bed) if bed.seed else impossible(bed)


@pytest.mark.parametrize(
    ("function", "verdict", "code", "told"),
    [
        (held, "held", 0, "held: whole"),
        (broken, "not held", 1, "**not held**: a mixture"),
        (never, "no fault", 3, "**no fault**: it ended before"),
        (impossible, "not tried", 3, "**not tried**: no cgroup can be made here"),
        (wrong, "not held", 1, "**not held**: AssertionError: not in 90 s"),
        (broken_or_never, "not held", 1, "**not held**: a mixture"),
        (impossible_or_never, "no fault", 3, "**no fault**: it ended before"),
    ],
)
def test_verdicts_and_continuation(
    function: object, verdict: str, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst of the seeds counts; a second call tries only what has no trial, or whose fault did not happen."""
    monkeypatch.setattr(suite, "_function", lambda fault, side: function)
    fault = suite.Fault(1, "a fault", "somehow", "a bound", run="x:y", seeds=2)
    trials, said = suite.Trials(tmp_path / "trials.jsonl", "now"), list[str]()
    how: dict[str, Any] = {"seeds": None, "again": False, "trials": trials, "say": said.append}
    assert suite.run([fault], end=float("inf"), **how)
    assert len(said) == 4
    (row,) = suite.rows_of([fault], trials.all())
    assert row["trainyard"]["verdict"] == verdict
    assert suite.exit_code([row], True) == code
    (line,) = suite.table_lines([row])[2:]
    assert told in line
    if verdict == "held":
        assert (row["trainyard"]["points"], row["trainyard"]["lost"]) == (6, 1)
    again = sum(": no fault, " in line for line in said)
    assert suite.run([fault], end=float("inf"), **how)
    assert len(said) == 4 + again
    assert suite.Trials(tmp_path / "trials.jsonl", "later").all() == []


def test_time_that_is_up_is_no_success(tmp_path: Path) -> None:
    fault = suite.Fault(1, "a fault", "somehow", "a bound", run="x:y")
    trials = suite.Trials(tmp_path / "trials.jsonl", "now")
    assert not suite.run([fault], seeds=1, again=False, trials=trials, say=print, end=0.0)
    rows = suite.rows_of([fault], trials.all())
    assert suite.exit_code(rows, False) == 3
    assert "not yet run" in suite.table_lines(rows)[-1]


def test_kept_results_are_of_this_table() -> None:
    kept = json.loads(suite.RESULTS.read_text())
    assert [(row["number"], row["name"]) for row in kept["rows"]] == [(fault.number, fault.name) for fault in TABLE]


def test_what_was_not_tried_again_keeps_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RESULTS", tmp_path / "results.json")
    new, old = ({"number": n, "name": "a fault", "trainyard": {"verdict": "held"}} for n in (2, 1))
    suite.keep([old], "make earlier")
    suite.keep([{**old, "trainyard": {"verdict": suite.NOT_YET}}, new], "make now")
    kept = json.loads(suite.RESULTS.read_text())["rows"]
    assert [(row["number"], row["trainyard"]["verdict"], row["command"]) for row in kept] == [
        (1, "held", "make earlier"), (2, "held", "make now"),
    ]  # fmt: skip
    assert [told.rpartition(": ")[2] for told in suite.sources(kept)] == ["1.", "2."]
    assert suite.ranges([1, 2, 3, 7, 9, 10]) == "1 to 3, 7, 9 to 10"


def test_each_script_is_killed_with_ten_seeds_of_both_kinds_of_saves() -> None:
    (fault,) = (one for one in TABLE if one.number == 41)
    chosen = {schedule._chosen(seed) for seed in range(fault.seeds)}
    assert chosen == set(itertools.product(schedule.SCRIPTS, (False, True), range(10)))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "reached"),
        ({"points": 999}, "not reached yet"),
        ({"verdict": "not held"}, "**not reached**"),
        ({"verdict": suite.NOT_YET}, "not measured"),
    ],
)
def test_a_goal_is_reached_by_enough_rows_that_held(change: dict[str, Any], verdict: str) -> None:
    numbers = goals.GOALS[0].numbers
    sides = [{"verdict": "held", "points": 0} for _ in numbers]
    sides[0] |= {"points": 1000, **change}
    rows = [{"number": number, "trainyard": side} for number, side in zip(numbers, sides, strict=True)]
    assert goals.lines(rows)[2].endswith(f"| {verdict} |")
    assert goals.lines(rows)[5].endswith("| not measured |")


def test_a_goal_whose_rows_lost_no_count_of_steps_is_no_error() -> None:
    side = {"verdict": "not held", "lost": None, "seeds": 1}
    assert goals.lines([{"number": number, "trainyard": side} for number in (1, 10, 11)])[6].endswith(
        "| **not reached** |"
    )


@pytest.mark.parametrize(("seconds", "verdict"), [("9.9", "reached"), ("10.1", "not reached yet")])
def test_a_hang_is_named_in_time(seconds: str, verdict: str) -> None:
    rows = [
        {"number": n, "trainyard": {"verdict": "held", "seen": f"rank 1 named as hang after {seconds} s"}}
        for n in (12, 13)
    ]
    assert goals.lines(rows)[7].endswith(f"| after {seconds} s | {verdict} |")


@pytest.mark.parametrize(("steps", "verdict"), [("0.62", "reached"), ("1.01", "not reached yet")])
def test_a_save_beside_training_is_held_against_one_step(steps: str, verdict: str) -> None:
    side = {
        "verdict": "held",
        "seeds": 3,
        "seen": f"75% kept; an asynchronous save takes the time of {steps} steps; more",
    }
    assert goals.lines([{"number": 42, "trainyard": side}])[8].endswith(f"| {steps} steps | {verdict} |")
