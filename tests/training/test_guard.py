"""NaN and spikes: stop, skip or roll back, bounded, the same on all ranks, and no broken checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.inprocess import Quiet, StopAfter, Texts, losses, records, run, same, tensors
from tests.training.poisoned import poison
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import committed_steps
from training.checkpoint.shards import shards_of
from training.checkpoint.store import Store
from training.checkpoint.write import Snapshot
from training.config import ConfigError, apply_override, load_texts
from training.run.directory import RunDir
from training.run.failure import LossError
from training.trainer.guard import DEVIATIONS, FEWEST, WINDOW, History

BATCH = 8  # samples of a step


def at(step: int) -> int:
    """The data position of a step, before anything was skipped."""
    return BATCH * (step - 1)


def ledger(done: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.skipped.read_text().splitlines()]


def test_a_spike_is_six_deviations_above_the_mean_of_known_steps() -> None:
    history = History()
    for index in range(FEWEST):
        assert history.spike(1e9, 1e9) is None, "too few steps are known"
        history.add(2.0 + 0.1 * (-1) ** index, 1.0)
    limit = 2.0 + DEVIATIONS * 0.1 * math.sqrt(FEWEST / (FEWEST - 1))
    assert history.spike(limit - 1e-6, 1.0) is None
    assert "the loss" in (history.spike(limit + 1e-6, 1.0) or "")
    assert "the gradient norm" in (history.spike(2.0, 1.01) or "")
    for _ in range(2 * WINDOW):
        history.add(9.0, 1.0)
    assert history.spike(9.0, 1.0) is None, "old steps are forgotten"
    again = History()
    again.restore(json.loads(json.dumps(history.saved())))
    assert again.saved() == history.saved()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.on_spike=skipp", "'skipp' is not stop, skip, ignore or rollback:N .*nearest value: skip"),
        ("train.on_nan=rollback:0", "'rollback:0' is not stop, skip, ignore or rollback:N .*nearest value: rollback:1"),
        ("train.on_spike=restart", "nearest value: stop"),
        ("train.on_nan=ignore", "train.on_nan ignore would train on broken weights; nearest value: skip"),
    ],
)
def test_other_reactions_are_refused(override: str, message: str, texts: Texts) -> None:
    with pytest.raises(ConfigError, match=message):
        load_texts(apply_override(texts, override))


def test_a_rollback_passes_over_the_window_and_is_bounded(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad at step 8: back to step 5, and the samples of steps 6 to 8 are never learned, also after a restart."""
    poison({"nan": [at(8), at(17)]}, monkeypatch.setattr)
    recipe = ("train.on_nan=rollback:1", "device.log_every=1")
    rolled = run(texts, (*recipe, "train.steps=9"), tmp_path / "rolled", data_root, StopAfter(7))
    assert not rolled.skipped.exists()
    rolled = run(texts, (*recipe, "train.steps=13"), tmp_path / "rolled", data_root)
    (entry,) = ledger(rolled)
    assert (entry["kind"], entry["action"], entry["step"], entry["restored"]) == ("nan", "rollback", 8, 7)
    assert (entry["first"], entry["end"]) == (at(8), at(9))
    assert [record["step"] for record in records(rolled)] == list(range(1, 14))
    with pytest.raises(
        LossError, match=r"not finite at step 16.*rolled back 1 times before, the limit of train.on_nan"
    ):
        run(texts, (*recipe, "train.steps=20"), tmp_path / "rolled", data_root)
    assert committed_steps(rolled.checkpoints)[-1] == 15
    for name, tensor in tensors(rolled).items():
        assert torch.isfinite(tensor).all(), name


def test_a_window_is_passed_over_again_after_a_crash(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison({"nan": [at(7)]}, monkeypatch.setattr)
    recipe = ("train.on_nan=rollback:2", "train.steps=12")
    whole = run(texts, recipe, tmp_path / "whole", data_root)

    class Crash(Quiet):
        """A process that dies at the first step after its rollback."""

        @property
        def stop_requested(self) -> bool:
            if (tmp_path / "crashed" / "skipped.jsonl").exists():
                raise KeyboardInterrupt
            return False

        @stop_requested.setter
        def stop_requested(self, value: bool) -> None:
            assert not value

    with pytest.raises(KeyboardInterrupt):
        run(texts, recipe, tmp_path / "crashed", data_root, Crash())
    crashed = run(texts, recipe, tmp_path / "crashed", data_root)
    assert len(ledger(crashed)) == 1, "the bad samples were not met again"
    assert losses(crashed) == losses(whole)
    assert same(tensors(crashed), tensors(whole))


@pytest.mark.parametrize("kind", ["nan", "spike"])
def test_a_skipped_step_changes_nothing_but_the_position(
    kind: str, texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = 7 if kind == "nan" else 70
    steps = (f"train.steps={bad + 3}", "train.warmup_steps=1", f"train.on_{kind}=skip", "train.eval_every=1000")
    poison({kind: [at(bad)]}, monkeypatch.setattr)
    before = run(texts, steps, tmp_path / "run", data_root, StopAfter(bad - 1))
    kept = tensors(before)
    skipped = run(texts, (*steps, "checkpoint.every=1"), tmp_path / "run", data_root, StopAfter(bad))
    assert same(tensors(skipped), kept)
    done = run(texts, steps, tmp_path / "run", data_root)
    (entry,) = ledger(done)
    assert (entry["kind"], entry["action"], entry["step"]) == (kind, "skip", bad)
    assert (entry["first"], entry["end"]) == (at(bad), at(bad + 1))
    assert [record["step"] for record in records(done)] == [step for step in range(1, bad + 4) if step != bad]
    poison({kind: range(0, 10_000, BATCH)}, monkeypatch.setattr)
    with pytest.raises(LossError, match="the 10 steps before were skipped"):
        run(texts, (*steps, f"train.steps={bad + 40}"), tmp_path / "run", data_root)


def test_a_run_without_a_checkpoint_cannot_roll_back(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison({"nan": [at(2)]}, monkeypatch.setattr)
    with pytest.raises(LossError, match="there is no checkpoint to roll back to"):
        run(texts, ("train.on_nan=rollback:3",), tmp_path, data_root)


def test_a_value_that_is_not_finite_is_never_committed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.bfloat16), "n": torch.ones(2, dtype=torch.int64)}
    store.save(Snapshot(1, shards_of(good.items())), finite=True)
    for value in (math.nan, math.inf, -math.inf):
        bad = {**good, "b": torch.tensor([1.0, value], dtype=torch.bfloat16)}
        with pytest.raises(CheckpointError, match="rank 0: tensor 'b' holds a value that is not finite"):
            store.save(Snapshot(2, shards_of(bad.items())), finite=True)
    assert store.steps() == [1]


@pytest.mark.parametrize(("sharding", "steps"), [("ddp", 14), pytest.param("fsdp", 80, marks=pytest.mark.long)])
def test_two_ranks_decide_alike(sharding: str, steps: int, start: Callable) -> None:
    """Only rank 1 has bad gradients; both ranks roll back, once for each kind."""
    recipe = (f"parallel.sharding={sharding}", "train.on_nan=rollback:1", "train.on_spike=rollback:1",
              f"train.steps={steps}", "train.eval_every=1000", "checkpoint.every=10")  # fmt: skip
    bad = json.dumps({"nan": [at(13)], "spike": [at(75)], "rank": 1})
    job = start("two", nproc=2, overrides=recipe, module="tests.training.poisoned", POISON=bad)
    assert job.wait() == 0, job.text()
    first, *more = ledger(RunDir(job.run))
    assert (first["kind"], first["step"], first["restored"]) == ("nan", 13, 10)
    assert (first["first"], first["end"]) == (at(11), at(14))
    assert [(one["kind"], one["restored"]) for one in more] == ([("spike", 70)] if steps > 70 else [])
    assert [record["step"] for record in job.records()] == list(range(1, steps + 1))
