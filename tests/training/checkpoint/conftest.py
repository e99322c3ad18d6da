"""Real ranks, and checkpoints that they saved."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.serving import Ranks, rank_server, results


@pytest.fixture(scope="session")
def ranks_status() -> Iterator[Ranks]:
    """Call a function of ranks.py on real ranks, and return each rank's answer."""
    with rank_server() as call:
        yield call


@pytest.fixture(scope="session")
def ranks(ranks_status: Ranks) -> Callable[..., list[Any]]:
    """As `ranks_status`, for calls that must succeed: each rank's result."""
    return lambda *words, **arguments: results(ranks_status(*words, **arguments))


@pytest.fixture(scope="session")
def two_steps(ranks: Callable[..., list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, saved by two ranks that share every tensor. Tests change only a copy: `checkpoints`."""
    directory = tmp_path_factory.mktemp("two-steps")
    ranks("save", 2, directory=directory, steps=[1, 2])
    return directory


@pytest.fixture
def checkpoints(two_steps: Path, tmp_path: Path) -> Path:
    """A copy of `two_steps` for one test."""
    return Path(shutil.copytree(two_steps, tmp_path / "checkpoints"))
