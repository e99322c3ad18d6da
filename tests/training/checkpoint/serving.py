"""Starts the server of ranks.py, and asks it."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Answers = list[dict[str, Any]]
Ranks = Callable[..., Answers]

ROOT = Path(__file__).parents[3]
LIMIT_S = 80.0


@contextmanager
def rank_server() -> Iterator[Ranks]:
    """Yield a function that calls one of ranks.py on real ranks: `call(name, world, **arguments)`.

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


def results(answers: Answers) -> list[Any]:
    """Each rank's result; all ranks must have succeeded."""
    assert all(answer["status"] == 0 for answer in answers), answers
    return [answer["result"] for answer in answers]
