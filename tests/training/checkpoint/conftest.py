"""Real ranks, and checkpoints that they saved."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Answers = list[dict[str, Any]]
Ranks = Callable[..., Answers]

ROOT = Path(__file__).parents[3]
LIMIT_S = 40.0


@pytest.fixture(scope="session")
def ranks_status() -> Iterator[Ranks]:
    """Call a function of ranks.py on real ranks: `ranks_status(name, world, **arguments)`.

    There is one answer per rank: the exit `status` (negative signal number if killed), and `result` or
    `error` and `kind`.
    """
    command = [sys.executable, "-m", "tests.training.checkpoint.ranks"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, replies = server.stdin, server.stdout

        def call(function: str, world: int, **arguments: Any) -> Answers:
            request = {"function": function, "world": world, "limit_s": LIMIT_S, "arguments": arguments}
            print(json.dumps(request, default=str), file=requests, flush=True)
            ready, _, _ = select.select([replies], [], [], 3 * LIMIT_S)
            assert ready, f"{function} on {world} ranks: no answer"
            answers: Answers = json.loads(replies.readline())
            return answers

        yield call
        requests.close()
        server.wait(timeout=LIMIT_S)


@pytest.fixture(scope="session")
def ranks(ranks_status: Ranks) -> Callable[..., list[Any]]:
    """As `ranks_status`, for calls that must succeed: each rank's result."""

    def call(function: str, world: int, **arguments: Any) -> list[Any]:
        answers = ranks_status(function, world, **arguments)
        assert all(answer["status"] == 0 for answer in answers), answers
        return [answer["result"] for answer in answers]

    return call


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
