"""A run beside its plan, through the commands: `yard job status` and `yard job why` on a p5 cell's run directory."""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.plan.runs import run
from tools.cells import knobs, matrix
from tools.cells.knobs import Knobs
from tools.cells.trainer_config import config_texts
from tools.cli import invoke
from tools.cli.plan import calibrate as command
from tools.core import repo
from tools.plan.layout import CARDS, FITTED, Card
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


def test_an_elastic_job_is_compared_with_the_plan_of_its_present_ranks(
    world: NewWorld, cluster: Cluster, yard: Yard
) -> None:
    """After two of four nodes are lost a step takes twice as long, as planned."""
    whole, half = (Plan(run(NAME, gpus=gpus, shard=gpus, accumulation=32 // gpus)) for gpus in (32, 16))
    made = world(NAME)
    for index in range(len(made.pods)):
        made.running(index)
    home = cluster(made)
    cell = next(one for one in matrix.read(repo.root()).cells if one.name == NAME)
    config = matrix.configuration(repo.root(), cell).model_dump(mode="json") | {"nodes": {"min": 1, "max": 4}}
    (home / "volume/run.json").write_text(json.dumps({"config": config}))
    first = time.time() - 60
    rows = [
        {"step": n, "loss": 3.0, "step_s": plan.step_s, "tokens_per_s": 1.0, "time": first + n,
         "rank_step_s": [plan.before_exchange_s] * plan.run.layout.gpus}
        for n, plan in enumerate([whole] * 30 + [half] * 9)
    ]  # fmt: skip
    (home / "volume/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = yard.json("status")["training"]["plan"]
    assert told["measured_s"] == pytest.approx(half.step_s)
    assert told["step_s"] == pytest.approx(half.step_s, rel=0.05)
    assert "as planned" in told["says"]
    assert "slower than planned" not in yard.out("why", code=0)


SLOW = """
import runpy, sys, time
from training.trainer.parallelize import Parallel

seconds, plain = float(sys.argv.pop()), Parallel.exchange_rest


def slow(self, device):
    time.sleep(seconds)  # a network that takes so much longer
    plain(self, device)


Parallel.exchange_rest = slow
runpy.run_module("training.pretrain", run_name="__main__")
"""
FILES = ("run.json", "metrics.jsonl")
SETTINGS = (
    "model.vocab_size=512", "data.heldout_fraction=0.2", "train.warmup_steps=2", "train.steps=12",
    "train.eval_every=12", "train.eval_sequences=2", "checkpoint.every=12", "device.compile=off",
)  # fmt: skip


def trained(folder: Path, name: str, seconds: float) -> Path:
    """The run directory of two real ranks of cpu/llama-tiny, whose exchange takes so many seconds more."""
    draw, config, corpus = random.Random(0), folder / f"config-{name}", folder / "corpus"
    cell = knobs.rendered("cpu/llama-tiny", None, Knobs(settings=(*SETTINGS, f"data.source={corpus}")))
    for directory in (config, corpus):
        directory.mkdir(exist_ok=True)
    for layer, (_, text) in config_texts(cell, repo.root()).items():
        (config / f"{layer}.yaml").write_text(text, encoding="utf-8")
    for index in range(40):
        words = ("".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(3000))
        (corpus / f"{index:02d}.txt").write_text(" ".join(words), encoding="utf-8")
    program = folder / "slow.py"
    program.write_text(SLOW, encoding="utf-8")
    environment = {
        **os.environ, "TRAINYARD_RUN": str(folder / name), "TRAINYARD_DATA": str(folder / "data"),
        "TRAINYARD_CPUS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(repo.root()),
    }  # fmt: skip
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(
        [*torchrun, "--config", str(config), str(seconds)],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / name


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(900)
def test_a_real_run_is_calibrated_and_a_slower_one_is_explained(
    world: NewWorld, cluster: Cluster, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first run gives the processor's constants; the second waits 1.5 planned steps in each exchange."""
    first, facts = trained(tmp_path, "first", 0.0), tmp_path / "calibrated.yaml"
    monkeypatch.setattr(command, "PATH", str(facts))
    changes = [word for setting in SETTINGS for word in ("--set", setting)]
    assert invoke(["plan", "calibrate", str(first), "cpu/llama-tiny", *changes]) == 0
    assert "matmul CPU" in capsys.readouterr().out
    kept = yaml.safe_load(facts.read_text(encoding="utf-8"))
    monkeypatch.setitem(CARDS, "CPU", Card("CPU", **kept["cards"]["CPU"]))
    monkeypatch.setitem(FITTED, "matmul CPU", kept["fitted"]["matmul CPU"])
    assert invoke(["plan", "show", "cpu/llama-tiny", *changes]) == 0
    assert "tokens/s" in capsys.readouterr().out
    made = world()
    home = cluster(made)
    for name in FILES:
        shutil.copy(first / name, home / "volume")
    told = yard.json("status")["training"]["plan"]
    assert told["says"].endswith("as planned")
    slow = trained(tmp_path, "slow", 1.5 * told["step_s"])
    for name in FILES:
        shutil.copy(slow / name, home / "volume")
    assert "slower than planned by" in yard.json("status")["training"]["plan"]["says"]
    printed = yard.out("why", code=1)
    assert "slower than planned by" in printed
    assert re.search("x: (exposed communication|computation)", printed)  # a busy machine computes slower too
    assert "until gradients are exchanged" in printed
