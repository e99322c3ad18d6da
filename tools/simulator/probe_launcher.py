"""Starts a pod's launcher of a wiring proof: torchrun with the given options, or without any the probe.

It runs by its path, in an interpreter that reads neither the environment nor the working directory (-I). With
`--hold` it is the namespace instead: a network of its own, whose only interface is loopback, until it is
killed.
"""

import ctypes
import fcntl
import importlib
import os
import runpy
import signal
import socket
import struct
import sys
from pathlib import Path

NAMESPACE = "WIRING_NAMESPACE"  # the process whose network this one joins
HOLD = "--hold"
READY = "ready"
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h
HERE = Path(__file__).resolve()
PROBE = HERE.with_name("rank_probe.py")
GUARD = HERE.parents[2] / "training" / "guard"


def main() -> None:
    options = sys.argv[1:]
    if options == [HOLD]:
        hold()
    if NAMESPACE in os.environ:
        join(os.environ.pop(NAMESPACE))
    sys.path.append(str(GUARD))
    importlib.import_module("trainyard_guard").install()
    if not options:
        runpy.run_path(str(PROBE), run_name="__main__")
        return
    from torch.distributed import run

    run.main(options)


def hold() -> None:
    """Make the namespace, say so, and wait. Raises OSError where the kernel gives none."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP).ljust(40, b"\0"))
    print(READY, flush=True)
    while True:
        signal.pause()


def join(holder: str) -> None:
    """Enter the network of the process `holder`, before this process has threads."""
    for kind in ("user", "net"):
        descriptor = os.open(f"/proc/{int(holder)}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        _call("setns", descriptor, 0)
        os.close(descriptor)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
