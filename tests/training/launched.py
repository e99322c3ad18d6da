"""Stands in for torchrun with its ranks, without torch: does what its first argument says, as rank 0.

With a second argument it starts another rank, which does what that says.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from training.run import failure, heartbeat
from training.run.directory import RunDir
from training.run.failure import Failure

RUN = RunDir(os.environ["TRAINYARD_RUN"])


def main() -> int:
    what, *others = sys.argv[1:]
    rank = int(os.environ.get("RANK", "0"))
    child = None
    if others:
        child = subprocess.Popen([sys.executable, __file__, *others], env={**os.environ, "RANK": str(rank + 1)})
    heartbeat.begin(RUN.heartbeat, rank)
    code = globals()[what.replace(" ", "_")](rank)
    if child is not None:
        code = code or child.wait()
    return int(code < 0 or code)


def step(rank: int) -> int:
    """Make twenty steps a second until it is stopped."""
    heartbeat.enter("training", 0)
    for number in range(1, 100_000):
        heartbeat.beat(number)
        time.sleep(0.05)
    return 0


def a_few_steps(rank: int) -> int:
    heartbeat.enter("training", 0)
    for number in range(1, 40):
        heartbeat.beat(number)
        time.sleep(0.05)
    return 0


def hang(rank: int) -> int:
    """Make some steps, then none."""
    a_few_steps(rank)
    forever = threading.Event()
    forever.wait(600)
    return 0


def save_for_long(rank: int) -> int:
    a_few_steps(rank)
    with heartbeat.during("saving"):
        time.sleep(6)
    return 0


def print_lines(rank: int) -> int:
    print("to stdout", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    return 0


def refuse(rank: int) -> int:
    """Fail like a rank with a wrong configuration, once all of torchrun's are up, while the launcher keeps running."""
    (RUN.path / f"up-{rank}").touch()
    while len(list(RUN.path.glob("up-*"))) < int(os.environ.get("WORLD_SIZE", "1")):
        time.sleep(0.02)
    record("config", rank, None, "model.yaml:3: unknown key")
    time.sleep(60)
    return 1


def wait_for_sigterm(rank: int) -> int:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    (RUN.path / "pid").write_text(str(os.getpid()))
    (RUN.path / "pid").rename(RUN.path / "ready")
    while not heard:
        time.sleep(0.02)
    time.sleep(0.5)  # further requests would arrive here
    (RUN.path / "heard").write_text(" ".join(map(str, heard)))
    record("drained", rank, 3, "stopped on request at step 3")
    return 1


def eat_memory(rank: int) -> int:
    held = [b"x" * (1 << 20) for _ in range(1 << 10)]
    return len(held)


def leave_orphans(rank: int) -> int:
    """Leave a process with its own session behind, and one that is already dead."""
    for text in ("import time; time.sleep(600)", "pass"):
        start = f"subprocess.Popen([sys.executable, '-c', {text!r}], start_new_session=True)"
        subprocess.run([sys.executable, "-c", f"import subprocess, sys; {start}"], check=True)
    parent = os.getppid()
    left = Path(f"/proc/{parent}/task/{parent}/children")
    deadline = time.monotonic() + 60
    while len(left.read_text().split()) > 2 and time.monotonic() < deadline:  # the dead one is reaped
        time.sleep(0.05)
    (RUN.path / "children").write_text(left.read_text())
    return 0


def record(kind: str, rank: int, step: int | None, message: str) -> None:
    host, phase = socket.gethostname(), heartbeat.current()
    failure.write(Failure(kind, rank, host, os.getpid(), step, message, "", time.time(), phase), RUN)


if __name__ == "__main__":
    sys.exit(main())
