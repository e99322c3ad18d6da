"""Processes of a pod: children that die with their parent, adopted orphans, SIGTERM as a request to stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ENTRYPOINT = "TRAINYARD_ENTRYPOINT"  # set by training.entrypoint: its process id
RANK_NAME = "rank "  # of a forked rank, before its number
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")
_DEEPEST = 64  # generations of processes between a pod's first one and a rank
_LIBC = ctypes.CDLL(None, use_errno=True) if _LINUX else None


class Attempt:
    """This process's attempt at the run: its current step, and whether it was asked to stop.

    After `listen`, SIGTERM and SIGINT are requests that the loop reads between two steps; a second one
    changes nothing. Before that they end the process at once, because nothing can be lost yet.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.stop_requested = False

    @property
    def restarted(self) -> bool:
        """Whether ranks of this pod have trained before, and torchrun has started them again."""
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, _number: int, _frame: object) -> None:
        self.stop_requested = True


def die_with_parent() -> None:
    """End this process when its parent dies, so that a killed agent leaves no worker behind.

    The kernel does this on Linux; elsewhere a thread checks once a second. If the agent died while this
    process was still importing, the parent is now process 1, unless the entrypoint is process 1 itself.
    """
    parent = os.getppid()
    if parent == 1 and os.environ.get(ENTRYPOINT, "1") != "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if _LINUX:
        tied_to(parent)()
        return
    threading.Thread(target=_die_after, args=(parent,), daemon=True).start()


def tied_to(parent: int) -> Callable[[], None]:
    """Return a function for a new child of `parent`: the kernel then kills it when `parent` dies (Linux)."""

    def tie() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


def adopt_orphans() -> None:
    """Make this process adopt every orphaned descendant, as process 1 does (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exit_code(status: int) -> int:
    """Return the exit code in a status of wait(2), negative for a signal, as os.waitstatus_to_exitcode."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def children() -> set[int]:
    """This process's children, including dead ones that were not waited for (Linux)."""
    own = Path(f"/proc/{os.getpid()}/task")
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in own.iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def is_descendant(pid: int) -> bool:
    """Whether a process was started by this one, directly or through others (Linux)."""
    for _ in range(_DEEPEST):
        if pid <= 1 or pid == os.getpid():
            return False
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        pid = int(text.rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


def forked_rank(pid: int) -> int | None:
    """Return the number of a process that calls itself `rank N` (training.pod.forked_rank)."""
    with contextlib.suppress(OSError, ValueError):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
        return int(name[len(RANK_NAME) :]) if name.startswith(RANK_NAME) else None
    return None


def forked_ranks() -> list[int]:
    """Return the forked ranks below this process."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if forked_rank(pid) is not None and is_descendant(pid)]


def state_of(pid: int) -> str | None:
    """A process's state as one letter of proc_pid_stat(5), T for stopped, D for stuck in the kernel."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def _die_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
