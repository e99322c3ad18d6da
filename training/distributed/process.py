"""Processes of a pod: children that die with their parent, orphans that are found, SIGTERM as a request."""

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
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")
_LIBC = ctypes.CDLL(None, use_errno=True) if _LINUX else None


class Attempt:
    """This process's try at the run: the step it is at, and whether it was asked to stop.

    Once it listens, SIGTERM and SIGINT ask and the loop reads it at step boundaries; asking twice changes
    nothing. Before that they end the process at once, for nothing can be lost yet.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.stop_requested = False

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, _number: int, _frame: object) -> None:
        self.stop_requested = True


def die_with_parent() -> None:
    """End this process when its parent is gone, so that a killed agent leaves no worker behind.

    The kernel does it on Linux; elsewhere a thread looks once a second. An agent that died while this process
    was still importing is known by init being the parent, where the entrypoint is not process 1 itself.
    """
    parent = os.getppid()
    if parent == 1 and os.environ.get(ENTRYPOINT, "1") != "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if _LINUX:
        tied_to(parent)()
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def tied_to(parent: int) -> Callable[[], None]:
    """What a new child of `parent` calls so that the kernel kills it when its parent dies (Linux)."""

    def tie() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own, as process 1 is (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """This process's children, dead ones that nobody has waited for included (Linux)."""
    own = Path(f"/proc/{os.getpid()}/task")
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in own.iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def state_of(pid: int) -> str | None:
    """A process's state as one letter of proc_pid_stat(5), T for stopped, D for stuck in the kernel."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
