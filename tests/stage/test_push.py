"""A sender's files arrive through a pipe, and a broken pipe continues in the middle of a file."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.core import repo
from training.stage.offer import Broken, Changed, Offer

LARGE = random.Random(3).randbytes(9_000_000)


def received(offer: Offer, target: Path, say: Callable[[str], None] = lambda line: None) -> tuple[dict[str, Any], str]:
    """Offer files to a receiver; return its answer and what it said."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "training.stage", "receive", f"--to={target}"],
        cwd=repo.root(),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        answer = offer.made(process.stdin, process.stdout, say, lambda: None)
    finally:
        process.stdin.close()
        said = process.stderr.read().decode()
        process.wait(120)
        process.stdout.close()
        process.stderr.close()
    return answer, said


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source/deep").mkdir(parents=True)
    (tmp_path / "source/deep/large.bin").write_bytes(LARGE)
    (tmp_path / "source/empty").touch()
    (tmp_path / "source/.hidden").touch()
    (tmp_path / "source/z.txt").symlink_to(tmp_path / "source/deep/large.bin")
    return tmp_path / "source"


def test_files_arrive_and_are_not_sent_twice(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "claim/text/source"
    answer, said = received(Offer(source, ()), target)
    assert (answer["files"], answer["fetched"]) == (3, 2 * len(LARGE)), said
    assert (target / "z.txt").read_bytes() == (target / "deep/large.bin").read_bytes() == LARGE
    again = Offer(source, ())
    assert received(again, target)[0]["fetched"] == again.there == 0
    some = received(Offer(source, ("deep/*",)), tmp_path / "claim/text/some")[0]
    assert some["files"] == 1


def test_directories_behind_links_are_sent_once(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/more.txt").touch()
    for name, leads_to in (("linked", tmp_path / "elsewhere"), ("again", tmp_path / "elsewhere"), ("loop", source)):
        (source / name).symlink_to(leads_to)
    assert list(Offer(source, ()).files) == ["again/more.txt", "deep/large.bin", "empty", "z.txt"]


def test_a_sender_that_goes_away_is_continued(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "claim/text/source"
    offer = Offer(source, ())

    def go_away(line: str) -> None:
        if offer.there > 5_000_000:
            raise Broken("gone")

    with pytest.raises(Broken):
        received(offer, target, go_away)
    assert not target.exists()
    answer, said = received(Offer(source, ()), target)
    assert 0 < answer["fetched"] < 2 * len(LARGE) - 3_000_000, said
    assert (target / "deep/large.bin").read_bytes() == LARGE


def test_a_file_that_changes_meanwhile_is_not_taken(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "claim/text/source"

    def cut(line: str) -> None:
        with (source / "deep/large.bin").open("r+b") as file:
            file.truncate(1000)

    with pytest.raises(Changed, match="became shorter"):
        received(Offer(source, ()), target, cut)
    assert not target.exists()
