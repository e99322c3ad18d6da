"""A script for `accelerate launch` becomes a cell of two pods, whose ranks train together on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import tree

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("accelerate_loop.py")
STEPS = 12


def yard(checkout: Path, where: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *words],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def losses(checkout: Path, nodes: int) -> list[float]:
    """Train in `nodes` pods of one rank, and return the mean losses that the script printed."""
    name = f"accelerated-{nodes}"
    where = checkout.parent / name
    where.mkdir()
    shutil.copy(SCRIPT, where / "train.py")
    command = f"accelerate launch train.py --steps {STEPS}"
    words = ["--image", "registry.example.com/team/mine:1", "--command", command, "--nodes", str(nodes)]
    yard(checkout, checkout, "new", "script", name, *words)
    said = yard(checkout, where, "run", f"cpu/{name}")
    assert f"step {STEPS} loss=" in said
    assert f"world={nodes}" in said
    run = checkout / f"local/runs/cpu-{name}-train"
    assert json.loads((run / "end.json").read_text())["class"] == "done"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    return [row["loss"] for row in rows]


def test_two_pods_train_as_one_job(tmp_path: Path) -> None:
    """The second pod adds its own batches: control is the same script alone, whose losses differ."""
    checkout = tree.copy(tmp_path / "trainyard")
    assert losses(checkout, 2) != losses(checkout, 1)
