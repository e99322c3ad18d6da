"""Preparations that are killed, fill the disk, or run twice at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.data import reporter
from training.data.errors import DataError
from training.data.index import verify
from training.data.staging import sweep

STAGES = ["reading", "training a tokenizer", "split", "index", "rename"]


def reach(process: Any) -> None:
    """Wait until the child reaches its stage."""
    line = process.stdout.readline()
    assert line == "reached\n", line + process.stderr.read()


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_preparation_leaves_no_dataset(
    prepared: Callable[..., Path], child: Callable[..., Any], tmp_path: Path, stage: str
) -> None:
    process = child(stage)
    reach(process)
    root = tmp_path / "data"
    (leftover,) = names(root)
    sweep(root)
    assert names(root) == [leftover], "the control: work in progress is no leftover"
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    assert names(root) == [leftover]
    if stage == "rename":
        assert (root / leftover / "index.json").exists(), "killed before the last step"
    directory = prepared()
    assert names(root) == [directory.name]
    verify(directory)


def test_leftovers_are_removed_even_if_the_dataset_exists(
    prepared: Callable[..., Path], child: Callable[..., Any], tmp_path: Path
) -> None:
    process = child("rename")
    reach(process)
    directory = prepared()
    assert len(names(tmp_path / "data")) == 2
    process.kill()
    process.wait(30)
    assert prepared() == directory
    assert names(tmp_path / "data") == [directory.name]


def test_of_two_preparations_the_second_discards_its_own(
    prepared: Callable[..., Path], child: Callable[..., Any], tmp_path: Path
) -> None:
    process = child("rename")
    reach(process)
    directory = prepared()
    inode = (directory / "index.json").stat().st_ino
    output, _ = process.communicate("go on\n", timeout=300)
    assert process.returncode == 0
    assert output.strip() == str(directory)
    assert names(tmp_path / "data") == [directory.name]
    assert (directory / "index.json").stat().st_ino == inode
    verify(directory)


def test_two_that_race_agree(child: Callable[..., Any], tmp_path: Path) -> None:
    racers = [child(), child()]
    results = {racer.communicate(timeout=150)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0]
    assert len(results) == 1
    verify(Path(results.pop()))
    assert len(names(tmp_path / "data")) == 1


@pytest.mark.parametrize("limit", [20_000, 100])
def test_a_write_that_fails_is_one_error_and_leaves_nothing(
    child: Callable[..., Any], tmp_path: Path, limit: int
) -> None:
    """The limit on a file's size makes a real write fail, as a full disk would."""
    process = child(file_limit=limit)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert output.startswith(f"DataError: cannot write the dataset under {tmp_path / 'data'}")
    assert "File too large" in output
    assert errors == ""
    assert names(tmp_path / "data") == []


def test_a_root_that_is_not_a_directory_is_one_error(prepared: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write the dataset under .*/file"):
        prepared(root=tmp_path / "file")
    with pytest.raises(DataError, match=r"cannot write the dataset under .*/file/below"):
        prepared(root=tmp_path / "file" / "below")


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError])
@pytest.mark.parametrize("stage", ["read", "training", "tokenized"])
def test_an_interrupt_cleans_up(
    prepared: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stage: str,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(reporter, "line_seconds", lambda: 1e-5)
    monkeypatch.setattr(reporter, "POLL", 1e-6)
    lines: list[str] = []

    def interrupt(line: str) -> None:
        lines.append(line)
        if line.startswith(f"{stage} ") and lines[-2].startswith(f"{stage} "):
            assert len(names(tmp_path / "data")) == 1
            raise error("stop")

    with pytest.raises(error, match="stop"):
        prepared(progress=interrupt)
    assert names(tmp_path / "data") == []
