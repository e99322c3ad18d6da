"""torchrun with forked ranks, which start faster: `python -m training.pod.launcher -m training.pretrain ...`.

Most of a restart is spent importing torch, transformers and the trainer. Here one process of the pod imports
them while torchrun itself starts. Every rank, also of later restarts, is forked from it. It is the fork
server of Python's multiprocessing, which torchrun offers as --start-method=forkserver. Before the first rank
one more process is forked as a probe. If it finds that forking is not safe, torchrun starts each rank as
usual.
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

PRELOADED = "training.pod.preload"
PROBE_SECONDS = 60  # time limit for the answer of the forked probe, imports included
LONGEST_DIRECTORY = 70  # sockaddr_un has 108 bytes, and /pymp-xxxxxxxx/listener-xxxxxxxx follows it
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


def start_server(task: str) -> str:
    """Start the fork server, which imports a task; return why no rank may be forked from it, or ""."""
    os.environ[forked_rank.TASK] = task
    # Otherwise an import that asks whether there is a GPU initialises CUDA, which does not survive a fork:
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
    """Fork once; return why the task's ranks may not be forked, or ""."""
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
    """Why a just-forked process is not safe for a rank, or ""; runs in that process."""
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
    reason = start_server(words[at])
    from torch.distributed import run  # takes three seconds; the fork server imports the rest meanwhile

    parsed = run.parse_args(words)
    if not parsed.module or parsed.training_script != words[at]:
        reason = f"{words[at]} is not what torchrun starts"
    reason = reason or probe(words[at])
    # It reports a dead rank with its own stack, which does not help.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_without_traceback)
    if reason:
        print(f"launcher: each rank imports for itself: {reason}", file=sys.stderr, flush=True)
    run.main(words if reason else forking(words))


if __name__ == "__main__":
    main()
