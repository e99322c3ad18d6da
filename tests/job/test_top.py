"""`yard job top` on an invented cluster: a job that trains, one that waits, and what a terminal gets."""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict

from rich.console import Console

from tests.job.conftest import Cluster, NewWorld, Yard
from tools.cli.job.top import table
from tools.job import top
from tools.job.top import Row
from training.run.directory import write_json
from training.run.heartbeat import Beat, path_of


def test_a_job_that_trains_has_its_figures_and_price(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    job = world("p5/llama-3-1-8b")
    volume, now = cluster(job) / "volume", time.time()
    write_json(volume / "run.json", {"config": {"train": {"steps": 40}}})
    beat = Beat(0, "training", 9, now, job.name(0), 4242, "a", 9, 1.0, 9)
    write_json(path_of(volume / "heartbeat", 0), asdict(beat))
    rows = [{"step": step, "loss": 2.5, "tokens_per_s": 1000.0, "mfu": 0.4, "step_s": 1.0, "time": now + step - 9}
            for step in range(1, 10)]  # fmt: skip
    (volume / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shown = yard.out("top").splitlines()
    assert shown[0].split()[:4] == ["job", "state", "step", "loss"]
    (row,) = yard.json("top")["jobs"]
    cost = float(row.pop("usd_per_hour").replace(",", ""))
    assert cost > 100, "more than one p5"
    assert row == {
        "job": "team-a/p5-llama-3-1-8b-train", "state": "Running, training", "step": "9/40", "loss": "2.500",
        "speed": "1,000 tok/s", "mfu": "40.0%", "left": "31 s", "cause": "",
    }  # fmt: skip


def test_a_job_that_waits_has_the_cause_of_why(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    job = world("p5/llama-3-1-8b")
    job.waiting(0, "ImagePullBackOff", 'Back-off pulling image "trainer:1": not found')
    cluster(job)
    (row,) = yard.json("top")["jobs"]
    assert row["step"] == "-"
    assert row["cause"]
    assert row["cause"].partition(":")[0] in yard.out("why", "p5-llama-3-1-8b-train", code=1)


def test_no_job_is_a_sentence(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    home = cluster(world())
    objects = json.loads((home / "objects.json").read_text())
    (home / "objects.json").write_text(json.dumps(objects | {"pytorchjobs.kubeflow.org": [], "pods": []}))
    assert yard.out("top") == "no job\n"


def test_a_terminal_gets_no_control_character_of_a_cluster() -> None:
    hostile = Row("team-a/job\x1b[31m", "Running", loss="[bold]2", cause="\u202ex" * 200)
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, width=200, color_system=None).print(table([hostile, Row("b", "Failed")]))
    text = shown.getvalue()
    assert "\\x1b[31m" in text
    assert "[bold]2" in text
    assert not {"\x1b", "\u202e"} & set(text)
    assert "2 jobs" in text
    assert top.HEAD[-2:] == ("$/h", "cause")
