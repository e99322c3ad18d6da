"""The fault of a start: happens in a rank, and is recorded before it does."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from .. import records
from .state import Probe

MESSAGE = "trainyard: planted exception"
_TAIL = 65536
_WAIT_SECONDS = 3.0  # for the other ranks; longer where the first step took long
_SENT_SECONDS = 60.0  # until the runner has sent a signal
_PAUSE_SECONDS = 1.0  # from there through the launcher to the ranks; longer where the first step took long


def after_step(probe: Probe) -> None:
    """Carry out the fault that is due after this step. Raises RuntimeError where that is the fault."""
    fault = probe.fault
    if fault.step is None or probe.step != fault.step:
        return
    if fault.kind == "kill":
        probe.write(records.Injected("kill", probe.rank, probe.step))
        wait_for_all(probe, "injected", max(_WAIT_SECONDS, probe.first_step_seconds / 2))
        kill_self()
    elif fault.kind == "terminate":
        probe.write(records.Injected("terminate", probe.rank, probe.step))
        _wait_for_signal(probe)
    elif fault.rank == probe.rank and fault.kind == "exception":
        probe.write(records.Injected("exception", probe.rank, probe.step))
        raise RuntimeError(MESSAGE)
    elif fault.rank == probe.rank and fault.kind == "hang":
        probe.write(records.Injected("hang", probe.rank, probe.step))
        while True:
            time.sleep(3600)


def tear(probe: Probe, path: str, number: int) -> None:
    """Cut the file of a save to half and kill this rank, where this save is the one to be torn."""
    fault = probe.fault
    if fault.kind != "torn-save" or fault.save != number or fault.rank != probe.rank:
        return
    whole = os.path.getsize(path)
    os.truncate(path, whole // 2)
    probe.write(records.Injected("torn-save", probe.rank, probe.step, os.path.abspath(path), whole // 2, whole))
    kill_self()


def kill_self() -> None:
    """End this process by SIGKILL. Process 1 of a PID namespace cannot send it to itself: the runner does that."""
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


def _wait_for_signal(probe: Probe) -> None:
    """Wait until SIGTERM has reached this rank: it comes from outside, and a fast script must not be at its end before.

    A handler of the script runs meanwhile. Without one the signal ends this process here.
    """
    reached: list[int] = []
    handler = signal.getsignal(signal.SIGTERM)
    follows = callable(handler) and threading.current_thread() is threading.main_thread()

    def noted(number: int, frame: Any) -> Any:
        reached.append(number)
        return handler(number, frame)  # type: ignore[misc, operator]

    sent, end = probe.out / records.SIGNALLED, time.monotonic() + _SENT_SECONDS
    if follows:
        signal.signal(signal.SIGTERM, noted)
    try:
        while not reached and not sent.exists() and time.monotonic() < end:
            time.sleep(0.05)
        end = time.monotonic() + max(_PAUSE_SECONDS, probe.first_step_seconds / 8)
        while not reached and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        if follows and signal.getsignal(signal.SIGTERM) is noted:
            signal.signal(signal.SIGTERM, handler)


def wait_for_all(probe: Probe, event: str, seconds: float) -> None:
    """Wait until each rank has written this kind of event as one of its last, at most some seconds.

    Ranks that leave one after the other would look to the last ones as a fault of the script.
    """
    wanted = f'"event": "{event}"'.encode()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ready = {path.name.split("-")[1] for path in probe.out.glob("rank-*-*.jsonl") if wanted in _tail(path)}
        if len(ready) >= probe.world:
            return
        time.sleep(0.02)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return file.read(_TAIL)
