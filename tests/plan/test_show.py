"""`yard plan show` of cells, and the plan that a submission asks about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan.runs import ROOT
from tools import cli
from tools.cells import matrix
from tools.cells.memory import plan_of
from tools.cli.plan import _shown

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "p5/llama-3-1-8b"], 0, "tokens/s"),
        (["show", "p5/llama-3-1-8b", "--explain"], 0, "as H100: nothing was published"),
        (["show", "cpu/llama-tiny"], 3, "unknown: no accelerator"),
        (["show", "p4d/llama-3-1-8b", "--set", "device.float8=rowwise"], 3, "A100-40, which has no unit for it"),
        (["show", "g6e/llama-3-1-8b", "--set", "device.float8=rowwise"], 3, "L40S, which has no unit for it"),
        (["show", "g6e/llama-3-1-8b", "--set", "device.float8=tensorwise"], 0, "tokens/s"),
        (["show", "p6-b200/llama-3-1-8b"], 3, "unknown: B200"),
        (["show", "p5/llama-3-1-8b", "--set", "device.precision=fp32"], 1, "the planner has no formula for its time"),
        (["show", "p5/llama-3-1-8b", "--set", "parallel.reshard_after_forward=3"], 2, "nearest value: 2"),
        (["show", "p5/llama-2-7b", "--set", "parallel.tensor=16"], 2, "does not divide the 8 ranks of a node"),
        (["show", "p5/llama-9"], 2, "no such cell"),
    ],
)
def test_what_show_answers(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["plan", *words]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_each_term_is_documented() -> None:
    """`--explain` prints no term that the tables of the documentation do not have."""
    planning, extending = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("planning.md", "extending.md")
    )
    first = [
        line.split("|")[1].strip().split(", ") for line in (planning + extending).splitlines() if line.startswith("| ")
    ]
    documented = {name for names in first for name in names}
    cells = [cell for cell in matrix.read(ROOT).cells if not cell.script]
    plans = [plan_of(ROOT, cell) for cell in cells]
    names = {term.name for plan in plans for term in (*plan.memory.terms, *plan.memory.left_out)}
    names |= {step.name for plan in plans for step in plan.steps}
    assert names - documented == set()
    assert len(names) > 20


@pytest.mark.parametrize("words", [["plan", "show"], ["run", "--dry-run"]])
def test_bounds_that_the_batch_does_not_fit_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke([*words, "cpu/llama-tiny", "--set", "nodes={min: 2, max: 200}"]) == 2
    assert "nodes.max is 200, but 5 nodes cannot train" in (said := capsys.readouterr().err)
    assert "nearest value: 4" in said


def test_an_elastic_job_fits_at_its_fewest_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Three machines share 32 micro batches in two passes, and one holds what three divided."""

    found = []
    for words in (["--nodes", "1"], ["--nodes", "3", "--set", "nodes={min: 1, max: 3}"]):
        assert cli.invoke(["plan", "show", "p5/llama-3-1-8b", *words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    alone, bounded = found
    assert bounded["memory"]["needed"] == alone["memory"]["needed"]
    assert bounded["nodes"] == 3
    assert bounded["tokens"] == alone["tokens"]


def test_json_has_every_term(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["plan", "show", "p5/llama-3-1-8b", "--nodes", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["gpus"] == 16
    assert told["step_s"] == pytest.approx(sum(one["seconds"] for one in told["step"]))
    assert told["memory"]["needed"] == sum(one["bytes"] for one in told["memory"]["terms"])
    assert told["usd"]["reservation"] is None
    assert told["hours"][1] < told["hours"][0] < told["hours"][2]


def test_a_submission_asks_on_a_terminal(tmp_path: Path) -> None:
    """A real terminal: the plan is one small table, and `no` submits nothing."""
    outer, inner = os.openpty()
    words = [str(Path(sys.executable).with_name("yard")), "job", "submit", "p5/llama-3-1-8b"]
    (tmp_path / "config").write_text(KUBECONFIG, encoding="utf-8")
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "config")}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdin=inner, stderr=subprocess.PIPE, text=True) as running:
        os.write(outer, b"no\n")
        _, said = running.communicate(timeout=300)
    assert running.returncode == 2
    heads, row = said.splitlines()[:2]
    assert heads.split() == ["job", *" ".join(_shown.HEADS).split()]
    assert row.startswith("p5-llama-3-1-8b-train  4 x p5en.48xlarge  32 ")
    assert "submit it? yes/no" in said
    assert "nothing was submitted" in said
