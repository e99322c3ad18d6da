"""A view without namespaces: the command runs in a copy of the working directory, and is kept to it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from ..plan import Plan
from ..records import FoundFile
from . import tree

LARGEST = 2 << 30  # bytes that are copied


class Copied:
    """The nodes of one start, which all run in the same copy."""

    kind = "copy"
    network = True

    def __init__(
        self,
        plan: Plan,
        records: Path,
        state: Path,
        source: Path | None,
        commands: list[tuple[list[str], dict[str, str]]],
        log: int,
        note: str,
    ) -> None:
        self.note = note
        self._plan, self._state = plan, state
        self._work = state / "work"
        self._before: dict[str, tuple[int, int]] = {}
        self._user = Path(plan.workdir)
        outside = [path for path in plan.keep if not self._inside(path)]
        if outside:
            text = "{} lies outside of the working directory, and no overlay can be had here: {}"
            raise OSError(errno.EINVAL, text.format(outside[0], note))
        self._fill(source / "work" if source else None)
        for row in tree.entries(self._work):
            with contextlib.suppress(OSError):
                found = row.stat(follow_symlinks=False)
                self._before[row.path] = (found.st_size, found.st_mtime_ns)
        self._nodes: list[subprocess.Popen[bytes]] = []
        (state / "tmp").mkdir()
        try:
            for command, variables in commands:
                self._nodes.append(self._popen(command, variables, records, log))
        except BaseException:
            self.kill()
            raise

    def _inside(self, path: str) -> bool:
        return os.path.commonpath([path, self._plan.workdir]) == self._plan.workdir

    def _fill(self, source: Path | None) -> None:
        """Copy what git does not ignore, then what the earlier start kept; link the data."""
        links = [os.path.relpath(path, self._plan.workdir) for path in self._plan.link]
        left = LARGEST
        for name in tree.not_ignored(self._user):
            if any(name == link or name.startswith(link + "/") for link in links):
                continue
            path = self._user / name
            if not os.path.lexists(str(path)) or (path.is_dir() and not path.is_symlink()):
                continue
            left -= path.lstat().st_size
            if left < 0:
                text = "the working directory has more than {} GiB; name data with --link"
                raise OSError(errno.EFBIG, text.format(LARGEST >> 30))
            (self._work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(path), str(self._work / name), follow_symlinks=False)
        self._work.mkdir(exist_ok=True)
        for kept in self._plan.keep if source else []:
            inside = os.path.relpath(kept, self._plan.workdir)
            assert source is not None
            tree.remove_tree(self._work / inside)
            if (source / inside).exists():
                tree.copy_tree(source / inside, self._work / inside)
        for link in links:
            if not link.startswith("..") and not (self._work / link).exists():
                (self._work / link).parent.mkdir(parents=True, exist_ok=True)
                (self._work / link).symlink_to(self._user / link)

    def _popen(self, command: list[str], variables: dict[str, str], records: Path, log: int) -> subprocess.Popen[bytes]:
        own = {name: self._moved(value) for name, value in variables.items() if name != "PYTHONPATH"}
        temporary = str(self._state / "tmp")
        roots = os.pathsep.join([str(self._work), temporary, str(records), "/dev"])
        places = os.pathsep.join(self._moved(one) for one in variables.get("PYTHONPATH", "").split(os.pathsep))
        own.update(PYTHONPATH=places, TMPDIR=temporary, TRAINYARD_PROVE_ROOTS=roots)
        return subprocess.Popen(
            [self._moved(word) for word in command], cwd=str(self._work), env=own, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def _moved(self, text: str) -> str:
        """Return a word with paths of the working directory as they are in the copy."""
        user = str(self._user)
        if text == user or text.startswith(user + "/"):
            return str(self._work) + text[len(user) :]
        return text.replace("=" + user + "/", "=" + str(self._work) + "/")

    def codes(self) -> dict[int, int]:
        """Return the exit codes of the nodes whose command has ended; negative for a signal."""
        codes = {number: node.poll() for number, node in enumerate(self._nodes)}
        return {number: code for number, code in codes.items() if code is not None}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command of each node."""
        for node in self._nodes:
            with contextlib.suppress(ProcessLookupError):
                node.send_signal(number)

    def left(self) -> list[int]:
        """Return the processes that outlived the commands of the nodes."""
        return descendants(os.getpid())

    def kill(self) -> None:
        """End all processes, and wait for their end."""
        deadline = time.monotonic() + 10.0
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for node in self._nodes:
                node.poll()
            _reap({node.pid for node in self._nodes})
            time.sleep(0.02)

    def written(self) -> int:
        """Return what the copy takes on disk, in bytes."""
        return tree.size(self._state)

    def files(self) -> list[FoundFile]:
        """Return the files that were created or changed, by the paths of the user's directory."""
        found = []
        for one in tree.changed(self._work, None, str(self._work), False, self._plan.secrets):
            state = os.lstat(one.path)
            if self._before.get(one.path) != (state.st_size, state.st_mtime_ns):
                one.path = str(self._user) + one.path[len(str(self._work)) :]
                one.kept = any(one.path == kept or one.path.startswith(kept + "/") for kept in self._plan.keep)
                found.append(one)
        return found


def descendants(pid: int) -> list[int]:
    """Return the processes below a process that live, or whose end was not read yet."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((path / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(path.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _reap(own: set[int]) -> None:
    """Read the end of adopted processes, but not of those that `Popen` waits for."""
    for pid in descendants(os.getpid()):
        if pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
