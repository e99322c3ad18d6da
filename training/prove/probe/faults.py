"""The fault of a start: happens in a rank, and is recorded before it does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from .. import records
from .state import Probe

MESSAGE = "trainyard: planted exception"
_TAIL = 65536
_WAIT_SECONDS = 3.0
_PAUSE_SECONDS = 1.0


def after_step(probe: Probe) -> None:
    """Carry out the fault that is due after this step. Raises RuntimeError where that is the fault."""
    fault = probe.fault
    if fault.step is None or probe.step != fault.step:
        return
    if fault.kind == "kill":
        probe.write(records.Injected("kill", probe.rank, probe.step))
        wait_for_all(probe, "injected", _WAIT_SECONDS)
        kill_self()
    elif fault.kind == "terminate":
        probe.write(records.Injected("terminate", probe.rank, probe.step))
        # The signal comes from outside: a fast script must not be at its end before.
        wait_for_all(probe, "injected", _PAUSE_SECONDS)
        _pause(_PAUSE_SECONDS)
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


def _pause(seconds: float) -> None:
    """Sleep. A signal handler of the script runs in between."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)


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
