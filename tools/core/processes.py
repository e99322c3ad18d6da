"""Child processes that cannot outlive this one, and a way to end all of them.

On Linux the kernel kills a child when this process dies (PR_SET_PDEATHSIG). Processes whose parent has died
become children of this process (PR_SET_CHILD_SUBREAPER), so they can be found and ended even if they started
their own session, as torchrun's workers do.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 10.0

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent dies."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: Sequence[str],
    environment: Mapping[str, str] | None,
    cwd: Path,
    stdout: int | IO[bytes] | None,
    stderr: int | IO[bytes] | None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in its own session. It dies with the thread that starts it: call this in the main thread."""
    parent = os.getpid()

    def die_with_parent() -> None:
        if _LIBC is not None:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return subprocess.Popen(
        argv,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def send_signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process. Does nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def children_of(pid: int) -> set[int]:
    """Return the processes whose parent is `pid`, including zombies."""
    return {child for child, parent in _parents().items() if parent == pid}


def descendants(pids: Iterable[int]) -> set[int]:
    """Return `pids` and all their descendants."""
    table = _parents()
    found = {pid for pid in pids if pid in table}
    while True:
        more = {pid for pid, parent in table.items() if parent in found} - found
        if not more:
            return found
        found |= more


def kill_tree(processes: Sequence[subprocess.Popen[bytes]], others: Iterable[int] = ()) -> set[int]:
    """Kill processes and their descendants; return those that live after ten seconds, because the kernel holds them."""
    own = {process.pid for process in processes if process.poll() is None}
    left = own | set(others)
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        left = {pid for pid in descendants(left) if is_alive(pid)}
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        for process in processes:
            process.poll()
        reap(left - own)


def reap(pids: Iterable[int]) -> None:
    """Collect dead children among `pids`. Not for children that a `Popen` waits for."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def is_alive(pid: int) -> bool:
    """Return whether `pid` runs. A zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _parents() -> dict[int, int]:
    """Return the parent of each process, also of zombies."""
    return {one.pid: one.info["ppid"] for one in psutil.process_iter(["ppid"])}
