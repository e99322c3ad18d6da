"""Ranks that are forked from a process which has imported what they need.

It is the fork server of Python's multiprocessing, which torchrun offers as --start-method=forkserver. Before
the first rank one more process is forked as a probe. If it finds that forking is not safe, torchrun starts
each rank as usual.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from training.distributed.process import RANK_NAME

TASK = "TRAINYARD_TASK"  # the module whose imports the fork server holds
PRELOADED = f"{__package__}.preload"  # also in the agent's archive
PROBE_SECONDS = 60  # time limit for the answer of the forked probe, imports included
JEMALLOC = "jemalloc_bg_thd"  # of pyarrow's allocator, which prepares itself for a fork
LONGEST_DIRECTORY = 70  # sockaddr_un has 108 bytes, and /pymp-xxxxxxxx/listener-xxxxxxxx follows it


def launch(words: Sequence[str], task: str, forked: Callable[[Any, list[str]], tuple[str, list[str]]]) -> None:
    """Run torchrun with the arguments `words`, and its ranks forked if that is safe.

    `forked` gets the module torch.distributed.run. It returns why the ranks cannot be forked, or "", and then
    the arguments for forked ranks.
    """
    reason = start_server(task)
    from torch.distributed import run  # takes three seconds; the fork server imports the rest meanwhile

    unsuited, changed = forked(run, list(words))
    reason = reason or unsuited or probe(task)
    # It reports a dead rank with its own stack, which does not help.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_without_traceback)
    if reason:
        print(f"launcher: each rank imports for itself: {reason}", file=sys.stderr, flush=True)
        end_server()
    run.main(list(words) if reason else changed)


def start_server(task: str) -> str:
    """Start the fork server, which imports a task; return why no rank may be forked from it, or ""."""
    os.environ[TASK] = task
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


def end_server() -> None:
    """End the fork server, also one that is still importing: it would hold memory, of the card too, for nothing."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # no public name
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the fork server blocks it
    there.send(unsafe(task))


def unsafe(task: str) -> str:
    """Why a just-forked process is not safe for a rank, or ""; runs in that process."""
    module = sys.modules.get(task)
    if module is None:
        return f"{task} could not be imported"
    import torch

    if torch.cuda._is_in_bad_fork():
        return "CUDA was set up while importing"
    found = threads(os.getppid())
    return f"importing has started {found - 1} threads" if found > 1 else ""


def threads(pid: int) -> int:
    """Return the number of threads of a process, without those that a fork does not harm."""
    names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return len([name for name in names if name.strip() != JEMALLOC])


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def set_up() -> None:
    """Set what a new process would have of its own."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the fork server blocks it
    import torch

    with contextlib.suppress(OSError):  # the fork server's command line does not name the rank
        Path("/proc/self/comm").write_text(f"{RANK_NAME}{os.environ['RANK']}", encoding="utf-8")
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP read it before torchrun set it
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.default_generator.seed()  # all forks have the same state; Python's own generator takes another one
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
