"""One cause for each failed build.

Real builds printed the outputs of the kinds that tests/docker has. Those of a full disk, a dead engine, a
lack of memory and a compiler are written with the messages of pip, apt, docker and the kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tools.image.build_failures import cause, patterns

OUTPUTS = Path(__file__).parent / "outputs"
FILES = sorted(OUTPUTS.glob("*.txt"))
LINES: list[dict[str, str]] = YAML(typ="safe", pure=True).load(OUTPUTS / "lines.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_cause_of_a_recorded_build(path: Path) -> None:
    """The first line of a file has the cause, and a part of the line that shows it."""
    head, _, output = path.read_text().partition("\n")
    kind, _, part = head.removeprefix("# ").partition(": ")
    found = cause(output)
    assert found.kind == kind
    assert part in found.line
    assert found.remedy


@pytest.mark.parametrize("case", LINES, ids=lambda case: f"{case['cause']}: {case['output'][:40]}")
def test_the_cause_of_a_line(case: dict[str, str]) -> None:
    found = cause(case["output"])
    assert found.kind == case["cause"], found.line
    assert found.retry == (case["cause"] == "network")
    assert found.line.removeprefix("ERROR: ")[:20] in case["output"]


def test_every_cause_has_an_output_and_most_have_a_whole_build() -> None:
    whole = {path.read_text().split(":")[0].removeprefix("# ") for path in FILES}
    kinds = {pattern.kind for pattern in patterns()}
    assert kinds == {case["cause"] for case in LINES} | (whole & kinds)
    assert whole >= {
        *("no space", "out of memory", "engine stopped", "dependency conflict", "network", "base not found"),
        *("missing file", "syntax", "package not found", "certificate", "architecture"),
    }
    assert {pattern.kind for pattern in patterns() if pattern.retry} == {"network"}


def test_a_line_of_an_earlier_step_is_not_the_cause() -> None:
    """Control: the same line in the failed step is."""
    told = "#5 [2/3] RUN a\n#5 0.2 no space left on device is what df would say\n#5 DONE 0.3s\n"
    failed = "#6 [3/3] RUN b\n#6 0.1 something else\n#6 ERROR: process did not complete: exit code: 2\n"
    assert cause(told + failed).kind == "a command ended with 2"
    assert cause(told.replace("#5 DONE 0.3s", "#5 ERROR: exit code: 1")).kind == "no space"


def test_no_secret_is_printed() -> None:
    said = "Step 3/4 : RUN x\nfatal: https://me:hunter2hunter2@host/x: Could not resolve host: host\n"
    assert "hunter2" not in cause(said).line
