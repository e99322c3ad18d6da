"""Evidence of a process's death: the launcher's output about it, the kernel's count of memory kills."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from training.run.failure import classify_text, is_consequence, one_line

_KEPT = 40  # lines
# torch/distributed/elastic/multiprocessing/api.py, when torchrun gives up its group of workers.
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
# Behind the prefixes of torchrun and torch. Without a message Python prints the name alone.
_EXCEPTION = re.compile(
    r"(?:\[[^\]]{0,40}\]: ?){0,3}((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt))(?:: ?(.*))?"
)
# Lines that the launcher prints about itself or about any failure; they name no cause.
_LAUNCHER = re.compile(
    r"torch\.distributed\.elastic|torch/distributed/(?:elastic|run|launch)|ChildFailedError|^[IWE]\d{4} |"
    r"^\s*(?:time|host|rank|exitcode|error_file|traceback)\s+: |^[=-]{10,}$|^(?:Root Cause|Failures:)|"
    r"<NO_OTHER_FAILURES>|^\[\d+\]:$"
)


@dataclass(frozen=True)
class Death:
    """A failed worker as torchrun reports it; `code` is negative for a signal."""

    code: int
    local_rank: int
    pid: int


class Output:
    """The last lines of a pod's output, and the deaths of workers reported in them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)

    def take(self, line: str) -> Death | None:
        """Keep a line; return the death that torchrun reports in it, if any."""
        line = line.rstrip()
        found = _FAILED.search(line)
        if found:
            return Death(*map(int, found.groups()))
        if line and not _LAUNCHER.search(line):
            self._lines.append(line)
        return None

    def last(self, count: int = 12) -> list[str]:
        """The last lines that are not the launcher's own."""
        return list(self._lines)[-count:]

    def exception(self) -> tuple[str, str] | None:
        """Name and message of the last printed exception, if possible not of one that follows from another rank's."""
        matches = filter(None, (_EXCEPTION.fullmatch(line.strip()) for line in reversed(self._lines)))
        found = [(match[1].rpartition(".")[2], one_line(match[2] or "")) for match in matches]
        own = (one for one in found if not is_consequence(classify_text(": ".join(one))))
        return next(own, found[0] if found else None)


def memory_kills() -> int | None:
    """How often the kernel has killed for memory in this process's cgroup; None if that cannot be read.

    The source is `oom_kill` of memory.events (cgroup v2) or memory.oom_control (v1); in a pod it counts the
    container's kills.
    """
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file, root = "memory.oom_control", Path("/sys/fs/cgroup/memory")
        elif not controllers:
            file, root = "memory.events", Path("/sys/fs/cgroup")
        else:
            continue
        # Without a cgroup namespace the path is the host's, and the container sees only its last part.
        for directory in (root / path.strip("/"), root):
            kills = _counter(directory / file)
            if kills is not None:
                return kills
    return None


def _counter(file: Path) -> int | None:
    try:
        rows = dict(line.split(" ", 1) for line in file.read_text(encoding="utf-8").splitlines())
        return int(rows["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
