"""Starts the command of each node in namespaces of its own, on a copy-on-write view of the file system.

Started by the view: `python -I launcher.py SPEC`. It writes one JSON object a line: `{"node": 0, "pid": N}` for
process 1 of a node, `{"node": 0, "started": true}` when its view is made, `{"node": 0, "code": C}` for its end
(negative: the signal), and `{"error": TEXT}` where the view cannot be made. All processes die with their
parents, and with them the mounts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from training.prove.view import kernel, tree

DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs", "nfs", "nfs4", "lustre", "fuse",
         "9p", "virtiofs", "vfat", "squashfs", "fuseblk"}  # fmt: skip
SYSTEM = ("/proc", "/sys", "/dev")


def tell(**row: Any) -> None:
    os.write(1, (json.dumps(row) + "\n").encode())


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    kernel.die_with_parent(spec["parent"])
    root = os.geteuid() == 0
    try:
        if not root:
            kernel.become_own_user(os.getuid(), os.getgid())
        kernel.unshare(kernel.NEWNS | (0 if spec["network"] else kernel.NEWNET))
        kernel.mount("", "/", flags=kernel.REC | kernel.PRIVATE)
        if not spec["network"]:
            kernel.loopback_up()
        for one in spec["kept"]:
            _put_compiled(spec, one["path"], one["upper"])
            kernel.overlay(one["lower"], one["upper"], one["work"], one["merged"], root)
    except OSError as problem:
        tell(error=str(problem))
        sys.exit(1)
    children = [_fork_node(spec, number, root) for number in range(len(spec["nodes"]))]
    for child in children:
        os.waitpid(child, 0)


def _put_compiled(spec: dict[str, Any], place: str, upper: str) -> None:
    """Begin the view of a place with what Python compiled there in earlier starts."""
    tree.put_compiled(tree.layer(Path(spec["compiled"]), place), Path(upper))


def _fork_node(spec: dict[str, Any], number: int, root: bool) -> int:
    """Fork the parent of a node's process 1: it is in the process namespace of this process."""
    me = os.getpid()
    child = os.fork()
    if child:
        return child
    kernel.die_with_parent(me)
    try:
        kernel.unshare(kernel.NEWNS | kernel.NEWPID)
        ready, go = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(go)
            _process_1(spec, number, ready, root)
        os.close(ready)
        tell(node=number, pid=first)
        os.close(go)
        status = os.waitpid(first, 0)[1]
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        tell(node=number, code=code)
    except OSError as problem:
        tell(error=str(problem))
    os._exit(0)


def _process_1(spec: dict[str, Any], number: int, ready: int, root: bool) -> None:
    node = spec["nodes"][number]
    kernel.die_with_parent(0)
    os.read(ready, 1)  # until the parent has told the process id
    os.close(ready)
    try:
        _enter(spec, node, root)
    except OSError as problem:
        tell(error=str(problem))
        os._exit(125)
    tell(node=number, started=True)
    try:
        os.chdir(spec["workdir"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(spec["log"], 1)
        os.dup2(spec["log"], 2)
        os.setsid()
        for one in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(one, signal.SIG_DFL)
        os.closerange(3, 1024)
        os.execvpe(node["command"][0], node["command"], node["variables"])
    except OSError as problem:
        text = "{}: {}\n".format(node["command"][0], problem.strerror)
        os.write(2, text.encode(errors="replace"))
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def _enter(spec: dict[str, Any], node: dict[str, Any], root: bool) -> None:
    """Make the view of a node, and make it the root of its file system."""
    new, disks = node["merged"], Disks(spec, node, root)
    if root:
        _put_compiled(spec, "/", node["upper"])
        kernel.overlay("/", node["upper"], node["work"], new, root)
        for place, kind in _mounts():
            disks.show(place, kind)
    else:
        kernel.mount("root", new, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=755")
        disks.show_below("/", dict(_mounts()))
    for place in SYSTEM[1:]:
        if os.path.isdir(new + place):
            kernel.bind(place, new + place, read_only=root and place == "/sys")
    kernel.mount("proc", new + "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    if os.path.isdir(new + "/dev/shm"):
        kernel.mount("shm", new + "/dev/shm", "tmpfs", kernel.NOSUID | kernel.NODEV, "size={}".format(spec["memory"]))
    for one in spec["kept"]:
        os.makedirs(new + one["path"], exist_ok=True)
        kernel.bind(one["merged"], new + one["path"])
    os.makedirs(new + spec["records"], exist_ok=True)
    kernel.bind(spec["records"], new + spec["records"])
    kernel.pivot(new)


def _mounts() -> list[tuple[str, str]]:
    """Return the other disks of this machine with their kinds, parents first."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split()
            place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
            found[place] = words[words.index("-") + 1]
    system = tuple(one + "/" for one in SYSTEM)
    return sorted((place, kind) for place, kind in found.items()
                  if place != "/" and place not in SYSTEM and not place.startswith(system))  # fmt: skip


class Disks:
    """Shows the disks of this machine in the view of a node: copy on write, else read-only."""

    def __init__(self, spec: dict[str, Any], node: dict[str, Any], root: bool) -> None:
        self._spec = spec
        self._new, self._directory, self._root = node["merged"], node["disks"], root
        self._count = 0

    def show(self, place: str, kind: str) -> None:
        """Show what is at a place. What cannot be shown is empty."""
        target = self._new + place
        if not os.path.lexists(target):
            return
        try:
            if kind.split(".")[0] in DISKS and os.path.isdir(place):
                self._overlay(place, target)
                return
        except OSError:
            pass
        try:
            kernel.bind(place, target, read_only=True)
        except OSError:
            return

    def _overlay(self, place: str, target: str) -> None:
        self._count += 1
        upper, work, name = (
            os.path.join(self._directory, f"{self._count}-{part}") for part in ("upper", "work", "place")
        )
        os.makedirs(upper)
        os.makedirs(work)
        _put_compiled(self._spec, place, upper)
        kernel.overlay(place, upper, work, target, self._root)
        with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(place)

    def show_below(self, directory: str, mounts: dict[str, str]) -> None:
        """Show each entry of a directory: without root no overlay may have another mount below it."""
        with contextlib.suppress(OSError), os.scandir(directory) as rows:
            for row in rows:
                self._show_entry(row, mounts)

    def _show_entry(self, row: os.DirEntry[str], mounts: dict[str, str]) -> None:
        target = self._new + row.path
        if row.is_symlink():
            os.symlink(os.readlink(row.path), target)
        elif not row.is_dir():
            with contextlib.suppress(OSError), open(target, "w", encoding="utf-8"):
                kernel.bind(row.path, target, read_only=True)
        else:
            os.mkdir(target)
            if row.path in SYSTEM:
                return
            if any(place.startswith(row.path + "/") for place in mounts):
                self.show_below(row.path, mounts)
            else:
                self.show(row.path, mounts.get(row.path, "overlay"))


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - the reader of the lines gets one sentence
        tell(error=traceback.format_exc().strip().splitlines()[-1])
        os._exit(1)
