"""A profile holds the requested steps; without a request there is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.training.inprocess import Texts, losses, run
from training.config import ConfigError
from training.trainer.profiling import Profile


def test_the_requested_steps_are_recorded_without_side_effects(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = run(texts, ("train.steps=5",), tmp_path / "calm", data_root)
    assert not (calm.path / "profile").exists()
    monkeypatch.setenv("TRAINYARD_PROFILE", "2:2")
    watched = run(texts, ("train.steps=5",), tmp_path / "watched", data_root)
    trace = json.loads(gzip.decompress((watched.path / "profile" / "rank-00000.json.gz").read_bytes()))
    updates = [e for e in trace["traceEvents"] if str(e.get("name", "")).startswith("Optimizer.step")]
    assert len(updates) == 2
    assert losses(watched) == losses(calm)


def test_a_profile_that_cannot_be_written_does_not_end_the_run(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profile").write_text("in the way")
    monkeypatch.setenv("TRAINYARD_PROFILE", "2:2")
    done = run(texts, ("train.steps=5",), tmp_path, data_root)
    assert len(losses(done)) == 5
    assert "the profile was not written to" in done.rank_log(0).read_text()


@pytest.mark.parametrize("asked", ["20", "0:3", "3:0", "a:b", "-1:2"])
def test_a_wrong_range_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("TRAINYARD_PROFILE", asked)
    with pytest.raises(ConfigError, match="write <first step>:<steps>"):
        Profile(tmp_path, 0)
