"""torchrun whose ranks start at once: `python -m training.pod.launcher -m training.pretrain --config DIR`.

Importing torch, transformers and the trainer takes a rank longer than all the rest of a restart. Here one
process of the pod imports them, while torchrun itself starts; every rank, also of later restarts, is forked
from it: the fork server of Python's multiprocessing, which torchrun offers as --start-method=forkserver.
Before the first rank one more process is forked, to see whether that is safe; where it is not, torchrun
starts each rank as ever.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from training.pod import forked_rank

TASK = "TRAINYARD_TASK"  # the module whose imports the fork server holds
PRELOADED = "training.pod.preload"
PROBE_SECONDS = 60  # what a process that is forked, with all imports behind it, has to answer
LONGEST_DIRECTORY = 70  # what sockaddr_un's 108 bytes leave for it beside /pymp-xxxxxxxx/listener-xxxxxxxx
_MODULE = ("-m", "--module")
_TASKS = "training."


def suits(words: Sequence[str]) -> bool:
    """Whether a command is torchrun starting a task of the trainer, on a system that forks safely (Linux)."""
    return sys.platform.startswith("linux") and Path(words[0]).name == "torchrun" and _task(words) is not None


def forking(words: Sequence[str]) -> list[str]:
    """Return torchrun's arguments with ranks forked: `training.pod.forked_rank` gets the task.

    `words` are torchrun's own, with `-m` and a task of the trainer among them.
    """
    at = _task(words)
    assert at is not None
    script = str(Path(forked_rank.__file__).resolve())
    return ["--start-method=forkserver", *words[: at - 1], "--run-path", script, *words[at:]]


def start_server(task: str) -> str:
    """Start the fork server, which imports a task; returns why no rank may be forked from it, or ""."""
    os.environ[TASK] = task
    # Without it, asking whether there is a GPU (as imports do) sets up CUDA, which no fork survives:
    # https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_available.html
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["PYTHONUNBUFFERED"] = "1"  # as torchrun's `python -u`
    forkserver.set_forkserver_preload([PRELOADED])
    if len(tempfile.gettempdir()) > LONGEST_DIRECTORY:
        tempfile.tempdir = "/tmp"
    try:
        forkserver.ensure_running()
    except OSError as problem:
        return str(problem)
    return ""


def probe(task: str) -> str:
    """Fork once; returns why the task's ranks may not be forked, or ""."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(there, task), daemon=True)
    try:
        child.start()
        there.close()
        answer = here.recv() if here.poll(PROBE_SECONDS) else f"no answer in {PROBE_SECONDS} s"
        child.join(1.0)
    except (OSError, EOFError) as problem:
        answer = f"the fork server is gone ({type(problem).__name__})"
    return str(answer)


def _answer(there: Connection, task: str) -> None:
    there.send(unsafe(task))


def unsafe(task: str) -> str:
    """Why a process that has just been forked is no good start for a rank, or "": to be asked in it."""
    module = sys.modules.get(task)
    if module is None:
        return f"{task} could not be imported"
    import torch

    if torch.cuda._is_in_bad_fork():
        return "CUDA was set up while importing"
    threads = _threads(os.getppid())
    return f"importing has started {threads - 1} threads" if threads > 1 else ""


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def _task(words: Sequence[str]) -> int | None:
    """Where the module of the trainer stands that torchrun is to start, or None."""
    for at, word in enumerate(words[1:], start=1):
        if words[at - 1] in _MODULE:
            return at if word.startswith(_TASKS) else None
    return None


def main() -> None:
    """Command line, as torchrun's."""
    words = sys.argv[1:]
    at = _task(words)
    if at is None:
        sys.exit(
            "launcher: give a task of the trainer: python -m training.pod.launcher -m training.pretrain ..."
        )
    reason = start_server(words[at])
    from torch.distributed import run  # three seconds, in which the fork server imports the rest

    parsed = run.parse_args(words)
    if not parsed.module or parsed.training_script != words[at]:
        reason = f"{words[at]} is not what torchrun starts"
    reason = reason or probe(words[at])
    # It tells of a dead rank with its own stack, which says nothing of the rank.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_without_traceback)
    if reason:
        print(f"launcher: each rank imports for itself: {reason}", file=sys.stderr, flush=True)
    run.main(words if reason else forking(words))


if __name__ == "__main__":
    main()
