"""`yard cluster log-rules check`: rules fire where HyperPod's agent would, and impossible ones are named.

tests/platform compares the judgement with the agent itself.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.cli import invoke
from tools.core import UserError
from tools.core.verdict import State
from tools.job import log_rules
from tools.job.snapshot import log_lines

STEPS = {"name": "Steps", "logPattern": r"^step +\d+", "expectedRecurringFrequencyInSeconds": 60}


def at(second: int, text: str) -> str:
    return f"2026-11-21T12:{second // 60:02d}:{second % 60:02d}Z {text}"


def checked(rule: dict[str, Any], *lines: str) -> tuple[State, list[tuple[str, int, float | None]], str]:
    (verdict,) = log_rules.check([rule], log_lines.read("\n".join(lines)))
    events = [(event["state"], event["line"], event["seconds"]) for event in verdict.details["events"]]
    return verdict.state, events, verdict.summary


def test_a_silence_fires_at_its_line_and_time() -> None:
    lines = [at(0, "start"), at(10, "step 1"), at(70, "step 2"), at(131, "evaluating"), at(140, "step 3")]
    state, events, summary = checked(STEPS, *lines)
    assert state is State.FAIL
    assert events == [("HEALTHY", 2, 10), ("HANGING", 3, 130), ("HEALTHY", 5, 140)]
    assert "fires: HANGING; the agent reports its pod as faulted (LogHang_Steps)" in summary
    assert checked(STEPS, *lines[:3])[0] is State.PASS
    assert checked({**STEPS, "stopPattern": "step 2"}, *lines)[0] is State.PASS, "the rule has ended"
    late = {**STEPS, "expectedStartCutOffInSeconds": 5}
    assert checked(late, *lines)[1][0] == ("HANGING", 1, 5)


def test_metrics_faults_and_ranks() -> None:
    speed = {"name": "Speed", "logPattern": r".*speed=([\d.,]+)", "metricThreshold": 10, "operator": "lteq",
             "metricEvaluationDataPoints": 2}  # fmt: skip
    assert checked(speed, "speed=5", "speed=11", "speed=5")[0] is State.PASS
    state, events, _ = checked(speed, "speed=5", "other", "speed=4.5")
    assert (state, events[-1]) == (State.FAIL, ("SLOW", 3, None))
    assert "line 2: could not convert string to float: '1,000'" in checked(speed, "speed=5", "speed=1,000")[2]
    fault = {"name": "Xid", "logPattern": ".*Xid 79", "faultOnMatch": True}
    assert checked(fault, "a", "NVRM: Xid 79")[1] == [("FAULTED", 2, None)]
    two = [f"[default{rank}]:speed={value}" for value in (5, 4) for rank, value in ((0, value), (1, 99))]
    verdict = log_rules.check([speed], log_lines.read("\n".join(two)))[0]
    assert {event["rank"] for event in verdict.details["events"] if event["state"] == "SLOW"} == {"local rank 0"}
    torchrun = [at(0, "starting"), *(at(s, f"[default0]:step {s}") for s in range(0, 90, 30)), at(99, "[rank0]: x")]
    assert checked({**STEPS, "expectedStartCutOffInSeconds": 9}, *torchrun)[0] is State.PASS, "a line without a rank"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logPattern": "loss^step"}, "logPattern can never match: ^ stands behind text"),
        ({"logPattern": "^step$ done"}, "logPattern can never match: text stands behind the end of the line"),
        ({"logPattern": "step\\r\\n"}, "can never match: Python reads a carriage return as the end of a line"),
        ({"stopPattern": "a^b"}, "stopPattern can never match"),
        ({"logPattern": "(step"}, "logPattern is not a regular expression"),
        ({"logPattern": ""}, "logPattern is missing"),
        ({"operator": "<"}, "operator < is not one of gt, lt, eq, gteq, lteq"),
        ({"metricThreshold": 1, "operator": "lt"}, "logPattern has no group"),
        ({"expectedRecurringFrequencyInSeconds": "60"}, "expectedRecurringFrequencyInSeconds is 60, and not a number"),
        ({"logPattern": "(?!)"}, "logPattern can never match: (?!) matches nothing"),
        ({"faultOnMatch": "yes"}, "faultOnMatch is yes, and not true or false"),
        ({"pattern": "x"}, "pattern is not a key of a rule"),
        ({"logPattern": ".*"}, "logPattern matches an empty text"),
        ({"stopPattern": "(done)?"}, "stopPattern matches an empty text"),
        ({"expectedRecurringFrequencyInSeconds": 0}, "InSeconds is 0, and must be at least 1"),
        ({"expectedStartCutOffInSeconds": -1}, "InSeconds is -1, and must be at least 1"),
    ],
)
def test_a_rule_that_cannot_work_is_named(change: dict[str, Any], reason: str) -> None:
    state, _, summary = checked({**STEPS, **change}, at(0, "step 1"))
    assert state is State.FAIL
    assert reason in summary


def test_a_rule_that_can_never_fire_is_named() -> None:
    rule = {"name": "Loss", "logPattern": ".*loss ([0-9.]+)", "metricThreshold": 9}
    assert "it can never fire without" in checked(rule, "loss 10")[2]
    assert checked({**rule, "operator": "gt"}, "loss 10")[1] == [("SLOW", 1, None)]


@pytest.mark.parametrize(
    "pattern",
    [
        "(?!)", "(?<!)a", "(a$b|c$d)", "(a$)b", "a(^b)", "step\\nloss", "a\\Z\\n", "a$.", "(?:a(?!))+", "(?>(?!))",
        "(?<=loss: )\\d+", "ab(?<=xyz)c", "(?=(?!))a",
    ],
)  # fmt: skip
def test_a_pattern_that_can_never_match_is_proven_so(pattern: str) -> None:
    assert log_rules.impossible(pattern)
    texts = map("".join, itertools.product("ab[\n", repeat=4))
    tried = [*texts, "ERROR", "loss: 1", "foo", "[foo", "step\n"]
    assert not any(re.match(pattern, text) for text in tried if "\n" not in text[:-1])


def test_the_end_of_a_line_is_part_of_it() -> None:
    """The agent reads lines with readline, which keeps it."""
    assert checked({**STEPS, "logPattern": "step \\d+\\n"}, at(0, "step 1"))[0] is State.PASS


@pytest.mark.parametrize(
    "pattern",
    [
        "a$\\s", "a$\\n", "$[^a]", "(?s)a$.", "(?m)a\\n^", "(?i)(?=A)a", "(?i:(?=A)a)", "(?!$)foo", "(?!foobar)foo",
        "(?:(?!)|a)", "x(?<=x)y", "\\bfoo", ".*\\bstep\\b", "(a)(?=\\1)a", "(?:[^\\w\\W])?a", "(?:a(?!))*b", "^a|b^c",
        "(?:^x)?y", "a*^b", ".*\\[x\\] (\\d+(\\.\\d+)?).*", "a$", "(^|x)y", "(?m)a",
    ],
)  # fmt: skip
def test_a_rule_that_may_match_is_not_called_impossible(pattern: str) -> None:
    assert log_rules.impossible(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "shorter", "expected"),
    [
        (  # the proof tries the pattern on an empty text
            f"{'(?:|)' * 60}(?!x)\\b", f"{'(?:|)' * 6}(?!x)", (State.PASS, "Steps: does not fire; 1 line matched"),
        ),
    ],
)  # fmt: skip
def test_a_proof_that_takes_too_long_is_left_out(
    pattern: str, shorter: str, expected: tuple[State, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rules, "_PROOF_SECONDS", 0.1)
    lines = log_lines.read(at(0, "step 1"))
    endless, after, control = log_rules.check(
        [{**STEPS, "logPattern": pattern}, STEPS, {**STEPS, "logPattern": shorter}], lines
    )
    assert (endless.state, endless.summary) == expected
    assert after.state is State.PASS
    assert control.state is State.FAIL
    assert re.search("logPattern (can never match|matches an empty text)", control.summary), "the proof is made in time"


def test_the_rule_that_uses_up_the_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rules, "_LOG_SECONDS", 0.5)
    lines = log_lines.read("\n".join(at(0, text) for text in ("step 1", "x" + "a" * 200, "a" * 200)))
    rules = [STEPS, {**STEPS, "name": "Endless", "logPattern": "(a+)+b"}, {**STEPS, "name": "Last"}]
    with pytest.raises(UserError, match=r"took more than 0.5 s on this log, longest those of the rule Endless$"):
        log_rules.check(rules, lines)
    with pytest.raises(UserError, match=r"of the rule Endless$"):
        log_rules.check(rules, lines[:2])  # the search for a line that has it elsewhere
    monkeypatch.undo()
    assert [one.state for one in log_rules.check(rules, lines[:1])] == [State.PASS, State.WARN, State.PASS]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rules, log = tmp_path / "rules.yaml", tmp_path / "pod.log"
    rules.write_text(json.dumps({"logMonitoringConfiguration": [{**STEPS, "logPattern": r"step +\d+"}]}))
    log.write_text("INFO step 1\n")
    words = ["cluster", "log-rules", "check", str(rules), "--log", str(log)]
    assert invoke(words) == 3
    assert "CANNOT TELL: Steps: the log has no times; 0 lines matched" in capsys.readouterr().out
    log.write_text(at(0, "INFO step 1"))
    assert invoke(words) == 0
    assert "line 1 has it, but not at its start: begin the pattern with .*" in capsys.readouterr().out
    log.write_text("\n".join([at(0, "step 1"), at(99, "step 2")]))
    assert invoke([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["events"][1]["state"] == "HANGING"
    rules.write_text(json.dumps([{**STEPS, "logPattern": "(a+)+b"}]))
    log.write_text(at(0, "a" * 200))
    monkeypatch.setattr(log_rules, "_LOG_SECONDS", 1)
    assert invoke(words) == 1
    assert "the patterns took more than 1 s on this log, longest those of the rule Steps" in capsys.readouterr().err
    rules.write_text("[{name: a}, 5]")
    assert invoke(words) == 2
    assert "5 is not a rule" in capsys.readouterr().err
    rules.write_text("kind: Pod")
    assert invoke(words) == 2
    assert "no logMonitoringConfiguration" in capsys.readouterr().err
    rules.write_text("a: {b}}")
    assert invoke(words) == 2
    assert f"{rules}:1: not valid YAML: " in capsys.readouterr().err


def test_the_rules_of_our_cells_can_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The cell as a HyperPodPyTorchJob, on lines of the trainer's log."""
    (tmp_path / "log").write_text("\n".join([at(0, "step   1/20  loss 6.2"), at(9, "finished at step 20")]))
    words = ["render", "overlays/cpu/llama-tiny", "--feature", "hyperpod-job"]
    assert invoke(words) == 0
    (tmp_path / "job.yaml").write_text(capsys.readouterr().out)
    assert invoke(["cluster", "log-rules", "check", str(tmp_path / "job.yaml"), "--log", str(tmp_path / "log")]) == 0
    assert "PASS: Steps: does not fire; 1 line matched" in capsys.readouterr().out
