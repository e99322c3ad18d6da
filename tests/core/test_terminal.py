"""What a person sees at a terminal, and what a pipe gets: real programs on pseudo-terminals, read by a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import screen
from tools.core import output

PLAIN = {
    "narrow": (40, {}), "no colour": (80, {"NO_COLOR": "1"}), "dumb": (80, {"TERM": "dumb"}),
    "ci": (80, {"CI": "true"}), "another encoding": (80, {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}),
}  # fmt: skip
WAIT = """
import os, time
def until(seen):  # a test has seen it: the program does not count on the speed of this machine
    while "SEEN" in os.environ and not os.path.exists(os.path.join(os.environ["SEEN"], seen)):
        time.sleep(0.02)
"""
WORK = f"""{WAIT}
from tools.core import State, Verdict, output
with output.activity("staging the data") as now:
    for number in range(1, 4):
        now.at(f"{{number}} of 4 MB")
        until(str(number))
    output.line("a line of a result")
output.table([("job", "state", "efa"), ("one", "Running", "-"), ("two", "Failed", "-")], "", True, [None, State.FAIL])
output.verdict(Verdict(State.FAIL, "it does not FAIL twice", ["because"], "fix the file"))
output.note("WARN some-rule: look")
"""
RESULTS = [
    "a line of a result",
    "FAIL: it does not FAIL twice",
    "  because",
    "  fix: fix the file",
    "WARN some-rule: look",
]


def test_a_person_sees_a_bar_colours_and_tables(tmp_path: Path) -> None:
    seen = {f"{25 * number} %": (tmp_path / str(number)).touch for number in range(1, 4)}
    shown = screen.python(WORK, variables={"SEEN": str(tmp_path)}, keys=seen)
    bars = [line for state in shown.states for line in state if "staging the data" in line]
    assert any("━" in line and "25 %" in line for line in bars), bars
    assert any("75 %" in line for line in bars)
    assert any("2 of 4 MB" in line for state in shown.states for line in state), "the line itself stands below the bar"
    assert any("a line of a result" in state[0] and "staging" in state[1] for state in shown.states if len(state) > 1)
    assert shown.last[0] == "a line of a result", "nothing of the bar stays"
    assert [line.split() for line in shown.last[1:4]] == [["job", "state"], ["one", "Running"], ["two", "Failed"]]
    assert shown.last[4:] == RESULTS[1:]
    assert "\x1b[31m\x1b[1mFAIL\x1b[0m: it does not FAIL twice" in shown.raw.replace(
        "\x1b[1m\x1b[31m", "\x1b[31m\x1b[1m"
    )
    assert "\x1b[?25h" in shown.raw.rpartition("\x1b[?25l")[2], "the cursor is back"


@pytest.mark.parametrize("where", PLAIN)
def test_other_terminals_get_plain_lines(where: str) -> None:
    columns, variables = PLAIN[where]
    shown = screen.python(WORK, columns=columns, variables=variables)
    assert "\x1b" not in shown.raw
    assert shown.raw.splitlines()[:2] == ["1 of 4 MB", "a line of a result"], "one line in ten seconds"
    assert shown.raw.splitlines()[2:5] == ["job  state    efa", "one  Running  -", "two  Failed   -"]
    assert shown.raw.splitlines()[5:] == RESULTS[1:]


def test_a_pipe_gets_plain_lines() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:1] == RESULTS[:1]
    assert done.stderr.splitlines() == ["1 of 4 MB", RESULTS[-1]]
    assert "\x1b" not in done.stdout + done.stderr


def test_a_wide_table_folds_names_and_says_once_what_is_alike() -> None:
    text = """
from tools.core import output
rows = [("namespace", "job", "step", "price"), *(("team-a", "x" * 70 + name, "9/40", "1.00") for name in "ab")]
output.table(rows, "", head=True)
output.table([("name", "state"), ("same", "x" * 90), ("same", "x" * 90)], "", head=True)
"""
    shown = screen.python(text)
    assert max(map(len, shown.last)) <= 80
    assert shown.last[0].split() == ["job"]
    assert shown.last[1:4] == ["x" * 70 + "a", "x" * 70 + "b", "namespace team-a, step 9/40, price 1.00"]
    assert shown.last[4].split() == ["name", "state"], "equal rows are shown"
    assert sum(line.count("x") for line in shown.last[5:]) == 180, "their cells fold"


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("step 3/40  loss 2.5", ("3", "40")),
        ("1,024.5 of 2,048 MB", ("1,024.5", "2,048")),
        ("12 of 40.", ("12", "40")),
        ("[2/5] building", ("2", "5")),
        ("reading /data/v1.2.3/4", None),
        ("torch 2.7.1/2.8.0", None),
        ("10.0.0.1/16 answers", None),
        ("written 2026/11/26", None),
    ],
)
def test_only_a_fraction_moves_the_bar(text: str, fraction: tuple[str, str] | None) -> None:
    """Lines come from builders, pods and users' scripts: whatever they hold, none ends the command."""
    found = output.FRACTION.search(text)
    assert (found.groups() if found else None) == fraction
    output.Activity("work").at(text)


HOSTILE = "\\x1b[31m[bold red]x[/] :smile: \\u202e\\x07\\x08https://a.b {task.total} %s \\r\\x9b31m"
SAYS = f"""{WAIT}
from tools.core import State, Verdict, output
text = "{HOSTILE}"
with output.activity(text) as now:
    now.at(text, 1, 2)
    until("half")
    output.line(text)
    output.note(text)
with output.repainted() as page:
    page.show(lambda: (output.line(text), output.table([("job",), (text,)], "", True)))
output.verdict(Verdict(State.WARN, text))
"""


def test_text_of_a_cluster_controls_nothing_and_is_no_markup(tmp_path: Path) -> None:
    seen = {"50 %": (tmp_path / "half").touch}
    shown = screen.python(SAYS, columns=120, variables={"SEEN": str(tmp_path)}, keys=seen)
    text = r"\x1b[31m[bold red]x[/] :smile: \u202e\x07\x08https://a.b {task.total} %s \r\x9b31m"
    assert sum(line == text for line in shown.last) == 4, shown.last
    assert f"WARN: {text}" in shown.last
    assert any(text[:20] in line and "50 %" in line for state in shown.states for line in state), "in the bar too"
    assert not set("\u202e\x07\x9b") & set(shown.raw)


def test_no_phase_is_silent(tmp_path: Path) -> None:
    """A bar with the command's name comes after some silence, and goes before the result."""
    text = f"""{WAIT}
from tools.core import output
output.PATIENCE = 0.2
with output.attended("yard job why"):
    until("bar")
    output.line("HEALTHY")
    time.sleep(0.7)
"""
    bar = "yard job why.*0:00:0[1-9]"
    shown = screen.python(text, variables={"SEEN": str(tmp_path)}, keys={bar: (tmp_path / "bar").touch})
    assert any(re.search(bar, line) for state in shown.states for line in state)
    assert shown.last == ["HEALTHY"]
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("HEALTHY\n", "")


def test_a_pipe_hears_of_a_silent_phase_now_and_then() -> None:
    text = """
import time
from tools.core import output
output.LINE_SECONDS = 1.0
with output.activity("starting", look=lambda: "compiling"):
    time.sleep(2.9)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    told = [int(re.fullmatch(r"compiling: (\d+) s", line)[1]) for line in done.stderr.splitlines()]  # type: ignore[index]
    assert told, "a phase of three seconds is silent"
    assert told == sorted(set(told)), "each line tells a later second"
    unheard = text.replace("LINE_SECONDS = 1.0", "LINE_SECONDS = 60.0")
    assert subprocess.run([sys.executable, "-c", unheard], capture_output=True, text=True, check=True).stderr == ""


PAGES = """
from tools.core import output
with output.repainted() as page:
    for name in ("first", "second"):
        page.show(lambda: output.table([("name", "state"), (name, "x" * 100)], head=True))
        goes_on = page.wait(0.2 if name == "first" else 300.0)
    output.note("above")
output.line(f"continued: {goes_on}")
"""


def test_a_page_is_painted_over_the_one_before_and_a_key_ends_it() -> None:
    shown = screen.python(PAGES, keys={"second": b"q"})
    assert any("first" in line for state in shown.states for line in state)
    assert any(state[-1] == "q ends" for state in shown.states if state)
    assert not any("first" in line for line in shown.last)
    assert sum("second" in line for line in shown.last) == 1
    assert max(map(len, shown.last)) <= 80, "cells fold"
    assert shown.last[-1] == "continued: False"
    assert shown.last[0] == "above"


def test_a_question_is_asked_without_a_bar() -> None:
    text = """
import time
from tools.core import output
with output.activity("sending"):
    time.sleep(0.7)
    answer = output.ask("send it? yes/no")
    output.line(f"answer {answer}")
"""
    shown = screen.python(text, keys={r"send it\? yes/no: ": b"yes\n"})
    asked = [state for state in shown.states if any("send it?" in line for line in state)]
    assert not any("sending" in line for line in asked[0])
    assert shown.last == ["send it? yes/no: yes", "answer yes"]


def test_help_does_not_import_rich() -> None:
    """Not at a terminal either: its start-up time would be that of rich."""
    text = "import sys; from tools.cli import invoke; invoke(['--help']); assert 'rich' not in sys.modules"
    shown = screen.python(text, variables={"PYTHONPATH": os.getcwd()})
    assert shown.code == 0, shown.raw
    assert "Commands:" in shown.raw


def test_a_ctrl_c_in_the_first_frame_is_not_lost() -> None:
    """It comes where Python ignores exceptions: in a finalizer while the display starts."""
    text = """
import os, signal
from tools.core import output, terminal
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
class Bar(terminal.Bar):
    def start(self):
        super().start()
        Finalized()
terminal.Bar = Bar
with output.attended("yard"), output.activity("working"):
    print("continues")
"""
    shown = screen.python(text)
    assert (shown.code, "continues" in shown.raw) == (-2, False)
    assert "\x1b[?25h" in shown.raw.rpartition("\x1b[?25l")[2]


@pytest.mark.parametrize("end", ["Ctrl-C", "SIGTERM"])
def test_an_early_end_gives_the_cursor_back(end: str) -> None:
    text = f"""
import os, signal, time
from tools.core import output
with output.attended("yard"), output.activity("working"):
    time.sleep(1.5)
    if {end == "SIGTERM"}:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    shown = screen.python(text, keys={"working": b"\x03"} if end == "Ctrl-C" else {})
    assert shown.code == (143 if end == "SIGTERM" else -2)
    assert "\x1b[?25h" in shown.raw.rpartition("\x1b[?25l")[2]
