"""The calls of the kernel that make namespaces and mounts, which Python has not in all versions."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct

NEWNS, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave namespaces of this process. A new process namespace holds the next children. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system. Raises OSError."""
    words = [word.encode() if word else None for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def bind(source: str, target: str, read_only: bool = False) -> None:
    """Show a directory, with what is mounted below it, at another place too. Raises OSError."""
    mount(source, target, flags=BIND | REC)
    if not read_only:
        return
    for locked in (0, NOSUID | NODEV, NOSUID | NODEV | NOEXEC):  # an ordinary user must repeat what is set
        try:
            mount("", target, flags=BIND | REMOUNT | RDONLY | locked)
            return
        except OSError as problem:
            last = problem
    _libc.umount2(target.encode(), DETACH)
    raise last


def overlay(lower: str, upper: str, work: str, target: str, root: bool) -> None:
    """Mount a copy-on-write view of `lower` at `target`. Raises OSError.

    With `root`, directories of `lower` can be renamed; other users get EXDEV, as between two disks.
    """
    data = "lowerdir={},upperdir={},workdir={}".format(*(_escaped(one) for one in (lower, upper, work)))
    mount("overlay", target, "overlay", data=data + (",redirect_dir=on,index=off" if root else ",userxattr"))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def pivot(root: str) -> None:
    """Make `root`, a mount, the root of this mount namespace; the old root is gone. Raises OSError."""
    os.chdir(root)
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: not known on {os.uname().machine}")
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", DETACH), "umount")
    os.chdir("/")


def loopback_up() -> None:
    """Bring the loopback interface of this network namespace up. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        row = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(one, _SIOCGIFFLAGS, row))[1]
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | _IFF_UP, b""))


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when the parent dies. `parent` is its process id, 0 where it is in another namespace."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become_own_user(uid: int, gid: int) -> None:
    """Enter a user namespace in which this user may mount, with the same ids. Raises OSError."""
    unshare(NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
