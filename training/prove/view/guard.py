"""Keeps the Python processes of a copied view to it: writing elsewhere ends the proof before a file is opened."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

ROOTS = "TRAINYARD_PROVE_ROOTS"
MARK = "trainyard: refused to write outside of the copy: "
# The paths that an event writes to: where each stands in its arguments, and where the directory that it is relative to.
_PATHS = {
    "os.remove": [(0, 1)], "os.rename": [(0, 2), (1, 3)], "os.mkdir": [(0, 2)], "os.rmdir": [(0, 1)],
    "os.truncate": [(0, 9)], "os.chmod": [(0, 2)], "os.chown": [(0, 3)], "os.link": [(1, 3)],
    "os.symlink": [(1, 2)], "shutil.rmtree": [(0, 1)],
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(roots: str, leave: Callable[[int], Any] = os._exit) -> None:
    """Refuse to write to files that lie in none of these directories (os.pathsep between them)."""
    allowed = [os.path.realpath(root) for root in roots.split(os.pathsep)]

    def refuse(path: Any, directory: Any = None) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        text = os.fsdecode(path)
        if isinstance(directory, int) and directory >= 0:
            text = os.path.join("/proc/self/fd", str(directory), text)
        real = os.path.realpath(text)
        if not any(real == root or real.startswith(root + os.sep) for root in allowed):
            os.write(2, ("\n" + MARK + repr(text) + "\n").encode(errors="backslashreplace"))
            leave(98)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if arguments[2] & _WRITES:
                refuse(arguments[0])
        elif event in _PATHS:
            for path, directory in _PATHS[event]:
                refuse(arguments[path], arguments[directory] if directory < len(arguments) else None)

    sys.addaudithook(hook)
