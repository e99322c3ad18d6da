"""The points of a save at which a machine can die: around each call that changes the file system."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir")


class Boundaries:
    """Counts the boundaries that this process passes, and dies by SIGKILL at number `point`.

    Dying loses what was not fsynced, as when the machine loses power: such files are cut to half first. A
    write is two boundaries, before it and with half of its bytes written. With `lazy`, fsync does nothing (a
    control).
    """

    def __init__(self, point: int | None, *, lazy: bool = False) -> None:
        self.passed: list[str] = []
        self._point, self._lazy = point, lazy
        self._unsynced: dict[int, int] = {}  # inode → a descriptor of our own
        self._real = {name: getattr(os, name) for name in CALLS}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Wrap the calls of module os inside the block."""
        wrappers = {name: self._wrapper(name) for name in CALLS}
        wrappers["write"], wrappers["fsync"] = self._write, self._fsync
        with ExitStack() as stack:
            for name, wrapper in wrappers.items():
                stack.enter_context(mock.patch.object(os, name, wrapper))
            yield

    def _wrapper(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **options: Any) -> Any:
            self._pass(f"{name} {os.path.basename(str(args[0]))}")
            return real(*args, **options)

        return call

    def _write(self, descriptor: int, data: Any) -> int:
        self._pass(f"write {_name(descriptor)}")
        self._unsynced.setdefault(os.fstat(descriptor).st_ino, os.dup(descriptor))
        half = len(data) // 2
        count: int = self._real["write"](descriptor, memoryview(data)[:half])
        self._pass(f"half written {_name(descriptor)}")
        return count + self._real["write"](descriptor, memoryview(data)[half:])

    def _fsync(self, descriptor: int) -> None:
        self._pass(f"fsync {_name(descriptor)}")
        if not self._lazy:
            self._real["fsync"](descriptor)
            self._unsynced.pop(os.fstat(descriptor).st_ino, None)

    def _pass(self, boundary: str) -> None:
        if self._point == len(self.passed):
            for descriptor in self._unsynced.values():
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed.append(boundary)


def _name(descriptor: int) -> str:
    return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
