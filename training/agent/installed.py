"""What the fork server of a user's ranks imports: torch, and the installed packages that the script imports.

The fork server imports this module. A rank notes the name of each module that it imports. When no name has
followed for some seconds, the server imports the same modules, so that the next ranks have them already. It
first tries that in a process of its own, because a server with threads or with CUDA cannot be forked. It
imports from the directories of Python's own and of installed modules only, never the user's files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import site
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.pod import fork_server
from training.pod.development import CODE

ALWAYS = ("torch", "torch._dynamo")  # an optimizer imports the second one
LOOK_SECONDS = 5.0
QUIET_SECONDS = 10.0
_NAME = re.compile(r"\w{1,200}(?:\.\w{1,200}){0,20}")
_MOST = 1 << 20  # bytes of names
_SERVER = os.getpid()
_read = 0  # bytes of names that were imported


def _file() -> Path:
    return Path(os.environ.get(CODE, "/nonexistent"), "imports")


def _places() -> tuple[str, ...]:
    """Return the directories of installed modules."""
    found = [*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))]
    return tuple({os.path.realpath(one) + os.sep for one in found})


def _is_installed(path: str) -> bool:
    standard = tuple(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    return (os.path.realpath(path) + os.sep).startswith((*_places(), *(one + os.sep for one in standard)))


def import_all(names: list[str]) -> None:
    """Import what is installed of these modules."""
    before, path = set(sys.modules), sys.path[:]
    sys.path[:] = [one for one in path if one and _is_installed(one)]
    for name in names:
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and not _is_installed(file):  # of a package that was installed in place
            del sys.modules[name]


def take() -> None:
    """Import what the script's ranks have imported, if a process that has done so is safe to fork."""
    global _read
    with contextlib.suppress(OSError):
        text = _file().read_bytes()[:_MOST]
        if len(text) == _read:
            return
        _read = len(text)
        names = [one for one in dict.fromkeys(text.decode(errors="replace").split()) if _NAME.fullmatch(one)]
        if _holds_in_a_fork(lambda: _is_safe_with(names)):
            import_all(names)


def _is_safe_with(names: list[str]) -> bool:
    import_all(names)
    return _holds_in_a_fork(lambda: not fork_server.unsafe(__name__))


def _holds_in_a_fork(test: Callable[[], bool]) -> bool:
    """Return whether a test holds in a forked process."""
    child = os.fork()
    if not child:
        holds = False
        with contextlib.suppress(BaseException):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            holds = test()
        os._exit(not holds)
    return os.waitpid(child, 0)[1] == 0


def _look(_number: int, _frame: object) -> None:
    with contextlib.suppress(OSError):
        if os.getpid() == _SERVER and time.time() - _file().stat().st_mtime > QUIET_SECONDS:
            take()


class _Recorder:
    """Notes what is imported; it finds nothing itself."""

    def __init__(self) -> None:
        self._out = _file().open("a", buffering=1, encoding="utf-8")
        self._noted: set[str] = set()  # a module that is missing may be looked for in each step

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        with contextlib.suppress(OSError, ValueError):
            if name not in self._noted:
                self._noted.add(name)
                self._out.write(f"{name}\n")


def record() -> None:
    """Note the modules that this process imports from now on."""
    with contextlib.suppress(OSError):
        sys.meta_path.insert(0, _Recorder())


def forget_hidden(directory: str) -> None:
    """Let the files of a directory hide installed modules of their names, as they do in a new process."""
    own = {path.stem for path in Path(directory).glob("*.py")}
    own |= {path.parent.name for path in Path(directory).glob("*/__init__.py")}
    for name in [one for one in sys.modules if one.partition(".")[0] in own]:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(_places()):
            del sys.modules[name]


if os.environ.get(fork_server.TASK) == __name__:  # this is the server
    import_all(list(ALWAYS))
    take()
    signal.signal(signal.SIGALRM, _look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
