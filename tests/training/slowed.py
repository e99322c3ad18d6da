"""A process that gets a share of one processor only: by a cgroup, or else by stopping and continuing it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

PERIOD = 0.02  # seconds
_CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def slowed(pid: int, share: float) -> Iterator[str]:
    """Slow a process and all its threads in this context; yield the means."""
    for parent, limit in ((_CGROUPS, "cpu.max"), (_CGROUPS / "cpu", "cpu.cfs_quota_us")):
        group = parent / f"trainyard-test-{os.getpid()}-{pid}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if "nr_throttled" not in (group / "cpu.stat").read_text():
                raise OSError("quotas are not enforced here")
            quota = f"{PERIOD * share * 1e6:.0f}"
            if limit == "cpu.max":
                (group / limit).write_text(f"{quota} {PERIOD * 1e6:.0f}")
            else:
                (group / "cpu.cfs_period_us").write_text(f"{PERIOD * 1e6:.0f}")
                (group / limit).write_text(quota)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.rmdir()
            continue
        try:
            yield f"cgroup, {limit}"
        finally:
            with contextlib.suppress(OSError):
                (parent / "cgroup.procs").write_text(str(pid))
            _removed(group)
        return
    over = threading.Event()
    worker = threading.Thread(target=_stop_and_continue, args=(pid, share, over))
    worker.start()
    try:
        yield "SIGSTOP"
    finally:
        over.set()
        worker.join()


def _removed(group: Path) -> None:
    """Remove an empty cgroup; a process that has just ended may be in it for a moment."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        threading.Event().wait(0.05)


def _stop_and_continue(pid: int, share: float, over: threading.Event) -> None:
    with contextlib.suppress(ProcessLookupError):
        while not over.wait(PERIOD * share):
            os.kill(pid, signal.SIGSTOP)
            over.wait(PERIOD * (1 - share))
            os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)
