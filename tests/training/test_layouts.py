"""Checkpoints move exactly between all layouts, and the curve does not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import layouts
from tests.training.inprocess import Texts, losses, run, same
from tests.training.jobs import own_network
from training.checkpoint.read import open_checkpoint
from training.config import apply_override
from training.run.directory import RunDir


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_run_through_all_layouts(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    names = list(layouts.ALL)
    last = layouts.STEPS * len(names)
    # Some gradients are clipped, so that a wrong norm shows, and no row count is even on all ranks.
    own = dict(texts)
    own["model"] = (own["model"][0], own["model"][1].replace("512", "518").replace("beddings: true", "beddings: false"))
    shared = (
        "train.warmup_steps=0", "train.learning_rate=1e-3", "train.schedule=linear", "train.gradient_clip=0.5",
        "train.min_learning_rate_ratio=1.0", "parallel.micro_batch_size=1", f"checkpoint.keep={last}",
    )  # fmt: skip
    alone = run(own, (*shared, f"train.steps={last}"), tmp_path / "alone", data_root)
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    for override in shared:
        own = dict(apply_override(own, override))
    for layer, (_, text) in own.items():
        (configuration / f"{layer}.yaml").write_text(text)
    moved = RunDir(tmp_path / "moved")
    command = [sys.executable, layouts.__file__, str(configuration), str(moved.path), str(data_root)]
    done = subprocess.run([*own_network(), *command], capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert losses(moved) == pytest.approx(losses(alone), rel=2e-5)
    for number, name in enumerate(names[1:], 1):
        step = f"step-{layouts.STEPS * number:08d}"
        was = open_checkpoint(moved.checkpoints / step)
        again = open_checkpoint(tmp_path / f"again-{name}" / "checkpoints" / step)
        assert same(*({n: each.full(n) for n in each.names()} for each in (was, again))), name
