"""The example scripts on two ranks: killed and stopped, they end with the curve of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.conftest import Started
from tests.house import printed
from tools.job.metrics import series
from training import checkpoints
from training.checkpoint.tier import Directory
from training.run.directory import RunDir
from training.run.failure import CODES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
# Options that make a run short, those that slow it down enough to interrupt it, and its steps.
RUNS = {
    "torch_loop": (["--steps=60", "--save-every=10"], ["--pause=0.05"], 60),
    "mnist": (["--epochs=4", "--images=512", "--lr=0.05"], ["--pause=0.1"], 32),
    "hf_trainer": (["--steps=40", "--save-every=8"], ["--pause=0.08"], 40),
}


def test_each_example_has_a_run() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/train.py")} == set(RUNS)


def losses(run: Path) -> dict[int, float | None]:
    """The last loss of each step, as `yard job metrics` reads it."""
    records = series.from_jsonl((run / "metrics.jsonl").read_text().splitlines())
    return {record.step: record.loss for record in records if record.step is not None}


def pid_of_rank(run: Path, rank: int) -> int:
    return int(json.loads((run / f"heartbeat/rank-{rank:05d}.json").read_text())["pid"])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["torch_loop", *(pytest.param(name, marks=pytest.mark.longest) for name in RUNS if name != "torch_loop")]
)
def test_killed_and_stopped_it_ends_as_an_undisturbed_run(
    name: str, start: Callable[..., Started], tmp_path: Path
) -> None:
    short, slow, steps = RUNS[name]

    def begin(run: str, *options: str) -> Started:
        words = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", str(EXAMPLES / name / "train.py")]
        own = {"TRAINYARD_RUN": str(tmp_path / run), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        one = start(TORCHRUN, *words, *short, *options, **own)
        one.run = tmp_path / run
        return one

    def saved(run: Path) -> set[str]:
        return {path.name for path in run.glob("checkpoints/step-*") if path.name.count(".") == 0}

    whole = begin("whole")
    assert whole.wait(300) == 0, whole.err
    assert set(losses(whole.run)) == set(range(1, steps + 1))

    one = begin("broken", *slow)
    one.until(lambda: saved(one.run), 120)
    os.kill(pid_of_rank(one.run, 1), signal.SIGKILL)
    before = saved(one.run)
    one.until(lambda: saved(one.run) - before, 120)
    one.process.send_signal(signal.SIGTERM)
    assert one.wait(120) == CODES["drained"], one.err
    assert one.end()["class"] == "drained"
    newest = max(int(name[5:]) for name in saved(one.run))
    assert "continuing after step" in one.out, "torchrun started the ranks again after the kill"

    again = begin("broken")
    assert again.wait(300) == 0, again.err
    assert again.end()["class"] == "done"
    assert f"continuing after step {newest}\n" in again.out
    assert losses(again.run) == pytest.approx(losses(whole.run), rel=1e-6)
    listed = checkpoints.verified(Directory(RunDir(again.run).checkpoints), None)["checkpoints"]
    assert [one["problem"] for one in listed] == [None, None]
    assert listed[-1]["step"] == steps


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_printed_commands(tmp_path: Path) -> None:
    """They run literally, in a directory that looks like the checkout and has a `local/` of its own."""
    for name in ("docs", "training", "tools", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    said = {}
    for line in printed.run_by("tests/agent/test_examples.py"):
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said[line] = done.stdout
    metrics, verified = list(said.values())[2:]
    assert metrics.splitlines()[0].startswith("loss,step,steps,time,lr")
    assert len(metrics.splitlines()) == 201
    assert "200" in verified
