"""A run whose checkpoints do not fit on the disk is refused before its first step, with the value that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.inprocess import Texts, run
from training.checkpoint.layout import committed_steps
from training.config import Config, ConfigError, apply_override, load_texts
from training.run.directory import RunDir
from training.trainer import space

SIZE = 1000


@pytest.mark.parametrize(
    ("fits", "changes", "advice"),
    [
        (4, (), None),
        (3, ("checkpoint.keep=3",), "checkpoint.keep is 3, nearest value that fits: 2"),
        (2, (), "checkpoint.keep is 2, and not even 2, the fewest, would fit: free space"),
        (
            7,
            ("train.steps=200", "checkpoint.keep_every=20"),
            "checkpoint.keep_every is 20, nearest value that fits: 45",
        ),
        (3, ("train.steps=200", "checkpoint.keep_every=20"), "checkpoint.keep_every is 20, nearest value that fits: 0"),
        (6, ("train.steps=200", "checkpoint.keep_best=9"), "checkpoint.keep_best is 9, nearest value that fits: 3"),
        (4, ("train.steps=10", "checkpoint.keep=50"), None),
    ],
)
def test_the_space_of_what_is_kept(
    fits: int,
    changes: tuple[str, ...],
    advice: str | None,
    texts: Texts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for change in changes:
        texts = apply_override(texts, change)
    monkeypatch.setattr(space, "free_bytes", lambda path: fits * SIZE)
    if advice is None:
        space.check_space(load_texts(texts), RunDir(tmp_path), SIZE)
        return
    with pytest.raises(ConfigError) as refused:
        space.check_space(load_texts(texts), RunDir(tmp_path), SIZE)
    assert str(refused.value).startswith(f"{advice}: ")


def test_the_size_is_that_of_a_checkpoint_and_what_is_there_counts(
    texts: Texts, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    check = space.check_space

    def noted(config: Config, directory: RunDir, size: int) -> None:
        sizes.append(size)
        check(config, directory, size)

    monkeypatch.setattr("training.trainer.places.check_space", noted)
    done = run(texts, ("train.steps=5", "train.warmup_steps=1"), tmp_path / "run", data_root)
    (step,) = committed_steps(done.checkpoints)
    written = sum(path.stat().st_size for path in done.checkpoints.rglob("*.safetensors"))
    assert sizes == [pytest.approx(written, rel=0.05)]
    monkeypatch.setattr(space, "free_bytes", lambda path: 0)
    with pytest.raises(ConfigError, match=r"do not fit into the 0.00 GiB that are free or used by this run"):
        run(texts, ("train.steps=25",), tmp_path / "run", data_root)
    assert committed_steps(done.checkpoints) == [step], "before the first step"
