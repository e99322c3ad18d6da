"""A run beside its plan, through the commands: `yard job status` and `yard job why` on a p5 cell's run directory."""

from __future__ import annotations

import html
import json
import time
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.plan.test_plan import run
from tools.cells import matrix
from tools.cli import invoke
from tools.core import repo
from tools.plan.outlook import Plan

NAME = "p5/llama-3-1-8b"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (1.0, 1.0, "as planned"),
        (1.0, 3.0, "slower than planned by 2.3x: exposed communication"),
        (2.2, 2.2, "slower than planned by 2.2x: computation"),
    ],
)
def test_status_and_why_compare_a_run_with_its_plan(
    before: float, after: float, said: str, world: NewWorld, cluster: Cluster, yard: Yard, tmp_path: Path
) -> None:
    """The times until and after the exchange of gradients are these multiples of the planned ones."""
    plan, made = Plan(run(NAME)), world(NAME)
    for index in range(len(made.pods)):
        made.running(index)
    home = cluster(made)
    cell = next(one for one in matrix.read(repo.root()).cells if one.name == NAME)
    config = matrix.configuration(repo.root(), cell).model_dump(mode="json")
    (home / "volume/run.json").write_text(json.dumps({"config": config}))
    rank = before * plan.before_exchange_s
    step, first = rank + after * plan.after_s, time.time() - 60
    rows = [
        {"step": n, "loss": 3.0, "step_s": step, "rank_step_s": [rank] * 32, "tokens_per_s": 1.0, "time": first + n}
        for n in range(1, 40)
    ]
    (home / "volume/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = yard.json("status")["training"]["plan"]
    assert told["step_s"] == pytest.approx(plan.step_s)
    assert told["measured_s"] == pytest.approx(step)
    assert said.partition(":")[0] in told["says"]
    assert invoke(["report", "p5-llama-3-1-8b-train", "--to", str(tmp_path / "page.html")]) == 0
    assert html.escape(told["says"]) in (tmp_path / "page.html").read_text(encoding="utf-8")
    printed = yard.out("why", code=int(said != "as planned"))
    assert (said in printed) == (said != "as planned")
    assert ("until gradients are exchanged" in printed) == (said != "as planned")
