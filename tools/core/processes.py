"""Child processes that cannot outlive this one, and a way to end every one of them.

On Linux a child is killed by the kernel when this process dies (PR_SET_PDEATHSIG), and processes whose parent
has died become this process's own children (PR_SET_CHILD_SUBREAPER), so that they can be found and ended even
where they made a session of their own, as torchrun's workers do. Elsewhere the process table of `ps` is used.
"""

from __future__ import annotations

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

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 10.0

_LINUX = sys.platform == "linux"
_LIBC = ctypes.CDLL(None) if _LINUX else None


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: Sequence[str],
    environment: Mapping[str, str] | None,
    cwd: Path,
    stdout: int | IO[bytes] | None,
    stderr: int | IO[bytes] | None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own; it is killed when this process dies.

    Call it in the main thread: the kernel ties the child to the thread that made it.
    """
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


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the one process that `start` made; nothing when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def children_of(pid: int) -> set[int]:
    """Return the processes whose parent is `pid`, dead ones that nobody has waited for included."""
    return {child for child, parent in _table().items() if parent == pid}


def descendants(pids: Iterable[int]) -> set[int]:
    """Return `pids` and everything below them, as the process table shows it now."""
    table = _table()
    found = {pid for pid in pids if pid in table}
    while True:
        more = {pid for pid, parent in table.items() if parent in found} - found
        if not more:
            return found
        found |= more


def kill_tree(processes: Sequence[subprocess.Popen[bytes]], others: Iterable[int] = ()) -> set[int]:
    """Kill `processes`, `others` and everything below them, again and again until nothing is left.

    Returns what is still there after ten seconds, which only a process stuck in the kernel can be.
    """
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
    """Collect dead children among `pids`; not for those that a `Popen` waits for."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def is_alive(pid: int) -> bool:
    """Say whether `pid` runs; a dead process that nobody has waited for does not."""
    state = _state(pid)
    return state is not None and state != "Z"


def command_line(pid: int) -> str | None:
    """Return a process's command line for a message, or None where it cannot be known."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode(errors="replace") for word in words if word)


def _table() -> dict[int, int]:
    """Return every process's parent."""
    if not _LINUX:
        return _ps_table()
    table = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                table[int(entry.name)] = int(fields[1])
    return table


def _state(pid: int) -> str | None:
    if _LINUX:
        fields = _stat(pid)
        return fields[0] if fields else None
    shown = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()[:1] or None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat behind the command's name, which may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _ps_table() -> dict[int, int]:
    shown = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in shown.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent in pairs}
