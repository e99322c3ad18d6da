"""Keeps the Python processes of a copied view to it: writing elsewhere ends the proof before a file is opened."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

ROOTS = "TRAINYARD_PROVE_ROOTS"
MARK = "trainyard: refused to write outside of the copy: "
_PATHS = {"os.remove": 1, "os.rename": 2, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1,
          "os.chown": 1, "os.link": 2, "os.symlink": 2, "shutil.rmtree": 1}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(roots: str, leave: Callable[[int], Any] = os._exit) -> None:
    """Refuse to write to files that lie in none of these directories (os.pathsep between them)."""
    allowed = [os.path.realpath(root) for root in roots.split(os.pathsep)]

    def refuse(path: Any) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        text = os.fsdecode(path)
        # The last part is the file itself: a link there is followed by open, and is itself removed.
        real = os.path.realpath(text)
        if not any(real == root or real.startswith(root + os.sep) for root in allowed):
            os.write(2, ("\n" + MARK + repr(text) + "\n").encode(errors="backslashreplace"))
            leave(98)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if arguments[2] & _WRITES:
                refuse(arguments[0])
        elif event in _PATHS:
            for path in arguments[: _PATHS[event]]:
                refuse(path)

    sys.addaudithook(hook)
