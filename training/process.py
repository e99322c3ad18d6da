"""This process as a child of torchrun: it dies with its parent and turns SIGTERM into a request to stop."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
import time

_PR_SET_PDEATHSIG = 1
DRAINED_EXIT = 143  # 128 + SIGTERM: never 0, or the operator would count a preempted pod as done


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

    The kernel does it on Linux; elsewhere a thread looks once a second.
    """
    parent = os.getppid()
    if platform.system() == "Linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
