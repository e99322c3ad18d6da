"""torchrun with forked ranks, which start faster: `python -m training.pod.launcher -m training.pretrain ...`.

Most of a restart is spent importing torch, transformers and the trainer. Here one process of the pod imports
them while torchrun itself starts. Every rank, also of later restarts, is forked from it (`training.pod.fork_server`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.pod import fork_server, forked_rank

_MODULE = ("-m", "--module")
_TASKS = "training."


def suits(words: Sequence[str]) -> bool:
    """Whether a command is torchrun with a task of the trainer, on a system where forking is safe (Linux)."""
    return sys.platform.startswith("linux") and Path(words[0]).name == "torchrun" and _task(words) is not None


def forking(words: Sequence[str]) -> list[str]:
    """Return torchrun's arguments for forked ranks: `training.pod.forked_rank` gets the task.

    `words` are torchrun's arguments, which contain `-m` and a task of the trainer.
    """
    at = _task(words)
    assert at is not None
    script = str(Path(forked_rank.__file__).resolve())
    return ["--start-method=forkserver", *words[: at - 1], "--run-path", script, *words[at:]]


def _task(words: Sequence[str]) -> int | None:
    """Position of the trainer's module that torchrun starts, or None."""
    for at, word in enumerate(words[1:], start=1):
        if words[at - 1] in _MODULE:
            return at if word.startswith(_TASKS) else None
    return None


def main() -> None:
    """Command line, the same as torchrun's."""
    words = sys.argv[1:]
    at = _task(words)
    if at is None:
        sys.exit("launcher: give a task of the trainer: python -m training.pod.launcher -m training.pretrain ...")
    fork_server.launch(words, words[at], _forked)


def _forked(run: Any, words: list[str]) -> tuple[str, list[str]]:
    parsed, task = run.parse_args(words), words[_task(words) or 0]
    suits = parsed.module and parsed.training_script == task
    return ("" if suits else f"{task} is not what torchrun starts"), forking(words)


if __name__ == "__main__":
    main()
