"""Starts the command of each node in namespaces of its own, on a copy-on-write view of the file system.

Started by the view: `python -I launcher.py SPEC`. It writes one JSON object a line: `{"node": 0, "pid": N}` for
process 1 of a node, `{"node": 0, "started": true}` when its view is made, `{"node": 0, "code": C}` for its end
(negative: the signal), and `{"error": TEXT}` where the view cannot be made. All processes die with their
parents, and with them the mounts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from training.prove.view import kernel

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
            kernel.overlay(one["lower"], one["upper"], one["work"], one["merged"], root)
    except OSError as problem:
        tell(error=str(problem))
        sys.exit(1)
    children = [_fork_node(spec, number, root) for number in range(len(spec["nodes"]))]
    for child in children:
        os.waitpid(child, 0)


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
    new = node["merged"]
    kernel.overlay("/", node["upper"], node["work"], new, root)
    for number, (place, kind) in enumerate(_mounts()):
        _show(place, kind, new, node, number, root)
    for place in SYSTEM[1:]:
        if os.path.isdir(new + place):
            kernel.bind(place, new + place, read_only=place == "/sys")
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


def _show(place: str, kind: str, new: str, node: dict[str, Any], number: int, root: bool) -> None:
    """Show another disk: copy on write, else read-only. What cannot be shown is empty."""
    target = new + place
    if not os.path.lexists(target):
        return
    if kind.split(".")[0] in DISKS and stat.S_ISDIR(os.stat(place).st_mode):
        upper, work = (os.path.join(node["disks"], f"{number}-{name}") for name in ("upper", "work"))
        try:
            os.makedirs(upper)
            os.makedirs(work)
            kernel.overlay(place, upper, work, target, root)
            with open(os.path.join(node["disks"], f"{number}-place"), "w", encoding="utf-8") as file:
                file.write(place)
            return
        except OSError:
            pass
    try:
        kernel.bind(place, target, read_only=True)
    except OSError:
        return


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - the reader of the lines gets one sentence
        tell(error=traceback.format_exc().strip().splitlines()[-1])
        os._exit(1)
