"""Where a cluster's processes live: namespaces of their own that end with the process that made them.

A network without an uplink (a bridge, 10.99.0.1/16), and own processes, mounts, host name and IPC; without
root, in a user namespace. The first process dies with this one (PR_SET_PDEATHSIG), and everything inside with
that. What stays on disk is removed by a janitor: a process that does nothing until this one is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.core import processes

BRIDGE_ADDRESS = "10.99.0.1"
UP_SECONDS = 180  # until a program of the cluster answers, on a busy machine too
_FIRST_PROCESS = """
set -e
mount --make-rprivate /
ip link set lo up
ip link add br0 type bridge
ip addr add 10.99.0.1/16 dev br0
ip link set br0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
trap '' CHLD   # inherited by sleep: the kernel collects orphans that end
touch "$1"
exec sleep infinity
"""
# Waits for the owner's end of the pipe to close, ends the first process where the kernel has not, and sweeps.
_JANITOR = """
cat >/dev/null
kill -9 "$1" 2>/dev/null
for _ in $(seq 200); do kill -0 "$1" 2>/dev/null || break; sleep 0.05; done
for _ in $(seq 40); do
  rm -rf --one-file-system "$2" 2>/dev/null
  left=
  for found in /sys/fs/cgroup/$3 /sys/fs/cgroup/*/$3; do   # unquoted: a pattern
    [ -d "$found" ] || continue
    find "$found" -depth -type d -exec rmdir {} \\; 2>/dev/null
    [ -d "$found" ] && left=yes
  done
  [ -e "$2" ] || [ -n "$left" ] || break
  sleep 0.25
done
"""


class CannotStart(Exception):
    """A part of the cluster does not start. The message names it and ends with its log."""


class Unsupported(Exception):
    """This machine cannot run it. The message says why and what would help."""


@dataclass
class Process:
    """One program of the cluster, with its log."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Return the process itself: the child of `nsenter`, which waits for it outside of the namespaces."""
        inner = processes.children_of(self.popen.pid)
        return min(inner) if inner and _name(self.popen.pid) == "nsenter" else self.popen.pid

    def alive(self) -> bool:
        return self.popen.poll() is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process and wait for its end."""
        if self.alive():
            os.kill(self.pid, number)
            self.popen.wait(timeout=30)

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def is_root() -> bool:
    """Return whether namespaces can be created."""
    return os.geteuid() == 0


class Sandbox:
    """A directory and, with root, the namespaces of one cluster. Leave it with close()."""

    def __init__(self, directory: Path | None = None) -> None:
        base = directory or Path(os.environ.get("TMPDIR") or "/var/tmp")
        self.root = Path(tempfile.mkdtemp(prefix="trainyard-cluster-", dir=base))
        self.name = self.root.name.removeprefix("trainyard-cluster-")
        self.processes: list[Process] = []
        for name in ("log", "bin"):
            (self.root / name).mkdir()
        self.init = self._namespaces()
        first = str(self.init.popen.pid)
        self._janitor = subprocess.Popen(
            ["sh", "-c", _JANITOR, "janitor", first, str(self.root), self.cgroup + "*"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def cgroup(self) -> str:
        """Return the prefix of this cluster's control groups."""
        return f"trainyard-{self.name}-"

    def enter(self, *kinds: str) -> list[str]:
        """Return the prefix that runs a command inside, in `kinds` of namespaces or in all."""
        wanted = kinds or ("net", "mount", "ipc", "uts", "pid")
        user = () if is_root() else ("--user", "--preserve-credentials")
        return ["nsenter", f"--target={self.init.pid}", *user, *(f"--{kind}" for kind in wanted), "--"]

    def start(self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Process:
        """Start a program inside. Its output is appended to `log/<name>.log`."""
        log = self.root / "log" / f"{name}.log"
        words = [*self.enter(), *map(str, argv)]
        with log.open("ab") as file:
            popen = processes.start(words, environment, self.root, file, file)
        process = Process(name, popen, log)
        self.processes = [one for one in self.processes if one.name != name] + [process]
        return process

    def run(self, argv: Sequence[str | Path], timeout: float = 60) -> str:
        """Run a short program inside and return its output. Raises CannotStart with its error."""
        words = [*self.enter(), *map(str, argv)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise CannotStart(f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def call_outside(self, *words: str) -> str:
        """Run a short program in the cluster's network, with this machine's process ids and files; return its output.

        Raises CannotStart with its error.
        """
        done = subprocess.run([*self.enter("net"), *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotStart(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def wait(self, what: str, ready: Callable[[], bool], seconds: float, needs: Sequence[Process] = ()) -> None:
        """Wait until `ready`. Raises CannotStart when a required process ends, or at the deadline."""
        deadline = time.monotonic() + seconds
        while not ready():
            for process in needs:
                if not process.alive():
                    raise CannotStart(f"{process.name} ended while waiting for {what}:\n{process.tail()}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {one.name}\n{one.tail()}" for one in needs)
                raise CannotStart(f"{what}: not after {seconds:.0f} s\n{logs}")
            time.sleep(0.05)

    def close(self) -> None:
        """End every process and remove everything of the cluster from this machine."""
        self.init.popen.kill()
        self.init.popen.wait()
        processes.kill_tree([one.popen for one in self.processes])
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait(timeout=600)  # images of 20 GiB, on a slow disk

    def _namespaces(self) -> Process:
        for program in ("unshare", "nsenter", "ip"):
            if shutil.which(program) is None:
                raise Unsupported(f"no {program} on PATH: install util-linux and iproute2")
        ready, log = self.root / "ready", self.root / "log/init.log"
        user = [] if is_root() else ["--user", "--map-root-user"]
        words = ["unshare", *user, "--net", "--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]
        words += ["--mount-proc", "sh", "-c", _FIRST_PROCESS, "init", str(ready)]
        with log.open("wb") as file:
            popen = processes.start(words, None, self.root, file, file)
        init = _Init("init", popen, log)
        deadline = time.monotonic() + 10
        while not ready.exists():
            if not init.alive() or time.monotonic() > deadline:
                init.popen.kill()
                complaint = log.read_text(errors="replace").strip()
                shutil.rmtree(self.root, ignore_errors=True)
                raise Unsupported(f"this machine gives no namespaces ({complaint}): run as root")
            time.sleep(0.01)
        return init


class _Init(Process):
    """The first process of the namespaces, below the `unshare` that keeps it."""

    @property
    def pid(self) -> int:
        return min(processes.children_of(self.popen.pid))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
