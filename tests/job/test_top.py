"""`yard job top` on an invented cluster: a job that trains, one that waits, and what a terminal gets."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.parts import screen
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
    (listed,) = yard.json("list")
    assert [listed[key] for key in ("model", "step", "loss", "left")] == ["llama-3-1-8b", "9/40", "2.500", "31 s"]
    assert float(listed["usd_per_hour"].replace(",", "")) == cost
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


def test_a_terminal_shows_jobs_again_and_again(world: NewWorld, cluster: Cluster) -> None:
    """In place, until q. Each column is a part of 80, and nothing of a cluster controls the terminal."""
    job = world("p5/llama-3-1-8b")
    job.waiting(0, "ImagePullBackOff", "Back-off [bold]pulling\x1b[31m image")
    cluster(job)
    shown = screen.show(
        [sys.executable, "-m", "tools.cli", "job", "top", "--every", "1"],
        variables={"PYTHONPATH": os.getcwd()}, keys={"p5-llama": b"q"},
    )  # fmt: skip
    assert shown.code == 0, shown.raw
    assert shown.last[0].split() == ["job", "state", "$/h", "cause"], "columns without a value are left out"
    assert not any(line in shown.raw for line in ("speed", "MFU"))
    assert max(map(len, shown.last)) <= 80
    assert "\x1b[31m image" not in shown.raw


def test_status_is_painted_over_itself(world: NewWorld, cluster: Cluster) -> None:
    cluster(world("p5/llama-3-1-8b"))
    shown = screen.show(
        [sys.executable, "-m", "tools.cli", "job", "status", "--watch"],
        variables={"PYTHONPATH": os.getcwd()}, keys={"next: yard job": b"q"},
    )  # fmt: skip
    assert shown.code == 0, shown.raw
    assert "8 H100 x 4 nodes (p5.48xlarge)" in shown.last[0] or "x " in shown.last[0], shown.last
    assert shown.last[-1].startswith("next: yard job")


@pytest.mark.parametrize("words", [("top", "--every", "1"), ("status", "--watch")])
def test_a_server_that_is_away_for_a_while_ends_no_watch(
    words: tuple[str, ...], world: NewWorld, cluster: Cluster
) -> None:
    home = cluster(world("p5/llama-3-1-8b"))
    shown = screen.show(
        [sys.executable, "-m", "tools.cli", "job", *words], columns=160, variables={"PYTHONPATH": os.getcwd()},
        keys={"p5-llama": (home / "gone").touch, "not seen this time: kubectl": b"q"},
    )  # fmt: skip
    assert shown.code == 0, shown.raw
    assert any("p5-llama-3-1-8b-train" in line for line in shown.last), "the table is still there"
