"""Saves of checkpoints, and all other files that Python opens for writing."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import records
from . import faults
from .imports import on_import
from .state import Probe

_CACHE = re.compile(r"/(__pycache__|\.cache|\.triton|torchinductor_[^/]*|dev|proc|sys)/")
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass
class _Opened:
    """A file that Python opened for writing, and that may become a checkpoint."""

    started: float
    step: int
    existed: bool


class Saves:
    """Records saves. A save that is to be torn is cut as soon as its file is complete, before a rename of it."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._opened: dict[str, _Opened] = {}
        self._begun: dict[str, int] = {}  # directory of an asynchronous save -> the step whose state it holds
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._open = probe.safe("saves")(self._on_open)
        self._rename = probe.safe("saves")(self._on_rename)
        self._wrote = probe.safe("saves")(self._record)
        self.settle = probe.safe("saves")(self._settle)

    def install(self) -> None:
        """Follow files that Python opens, and the libraries that write without it."""
        sys.addaudithook(self._audit)
        on_import("safetensors.torch", self.probe.safe("saves")(self._wrap_safetensors))
        on_import("torch.distributed.checkpoint.filesystem", self.probe.safe("saves")(self._wrap_streams))
        on_import("torch.distributed.checkpoint.state_dict_saver", self.probe.safe("saves")(self._wrap_async))

    def install_torch(self, torch: Any) -> None:
        """Wrap torch.save, which writes in C++."""
        save = torch.save

        @functools.wraps(save)
        def call(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = _path(f)
            if path is None or self._inside:
                return save(obj, f, *args, **kwargs)
            with self._saving(path, "torch.save", None if f is path or isinstance(f, os.PathLike) else f):
                return save(obj, f, *args, **kwargs)

        torch.save = torch.serialization.save = call

    def _wrap_safetensors(self, module: Any) -> None:
        save = module.save_file

        @functools.wraps(save)
        def call(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            with self._saving(os.fspath(filename), "safetensors"):
                return save(tensors, filename, *args, **kwargs)

        module.save_file = call

    def _wrap_streams(self, module: Any) -> None:
        """Wrap the files of torch.distributed.checkpoint, which its threads write too."""
        create = module.FileSystem.create_stream

        @contextmanager
        def create_stream(system: Any, path: Any, mode: str) -> Iterator[Any]:
            if "w" not in mode:
                with create(system, path, mode) as stream:
                    yield stream
                return
            with self._saving(os.fspath(path), "dcp"), create(system, path, mode) as stream:
                yield stream

        module.FileSystem.create_stream = create_stream

    def _wrap_async(self, module: Any) -> None:
        """Note the step of a save that writes while later steps run."""
        if not hasattr(module, "async_save"):
            return
        save = module.async_save

        @functools.wraps(save)
        def call(*args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)
            if isinstance(place, (str, os.PathLike)):
                self._begun[os.path.abspath(os.fsdecode(place))] = self.probe.step
            return save(*args, **kwargs)

        module.async_save = call

    @property
    def _inside(self) -> bool:
        return bool(getattr(self._thread, "inside", False))

    @contextmanager
    def _saving(self, path: Any, kind: str, stream: Any = None) -> Iterator[None]:
        """Record the save that the body does. What it opens and saves itself is a part of it."""
        path = os.path.abspath(os.fsdecode(path))
        self.settle()
        with self._lock:
            before = self._opened.pop(path, None)
        step = self._begun.get(os.path.dirname(path), self.probe.step)
        opened = before or _Opened(time.monotonic(), step, _size(path) > 0)
        self._thread.inside = True
        self.probe.saving += 1
        try:
            yield
        finally:
            self._thread.inside = False
            self.probe.saving -= 1
        if stream is not None:
            stream.flush()
        self._wrote(path, path, kind, opened)

    def _record(self, path: str, file: str, kind: str, opened: _Opened) -> None:
        """Record a complete save, or tear it. `file` is where the bytes are now, `path` what they are saved as."""
        self._thread.inside = True
        try:
            with self._lock:
                self.probe.saves += 1
                number = self.probe.saves
            faults.tear(self.probe, file, number)
            self.probe.write(
                records.Save(
                    step=opened.step,
                    number=number,
                    path=path,
                    bytes=_size(file),
                    kind=kind,
                    overwritten=opened.existed,
                    seconds=time.monotonic() - opened.started,
                )
            )
        finally:
            self._thread.inside = False

    # Files that Python opens

    def _audit(self, event: str, args: Any) -> None:
        if event == "open":
            path, mode, flags = args
            if isinstance(path, (str, bytes)) and _writes(mode, flags):
                self._open(os.path.abspath(os.fsdecode(path)), mode, flags)
        elif event == "os.rename":
            source, target = args[0], args[1]
            if isinstance(source, (str, bytes)) and isinstance(target, (str, bytes)) and self._opened:
                self._rename(os.path.abspath(os.fsdecode(source)), os.path.abspath(os.fsdecode(target)))

    def _on_open(self, path: str, mode: str | None, flags: int) -> None:
        if _CACHE.search(path) or path.startswith(str(self.probe.out)):
            return
        if self._inside:
            return
        self._settle()
        if _replaces(mode, flags) and not records.OTHER.search(path):
            with self._lock:
                self._opened[path] = _Opened(time.monotonic(), self.probe.step, _size(path) > 0)

    def _on_rename(self, source: str, target: str) -> None:
        if self._inside:
            return
        with self._lock:
            opened = self._opened.pop(source, None)
        if opened is not None and records.is_checkpoint(target, _size(source), opened.step):
            opened.existed = False  # what was there is replaced as a whole
            self._record(target, source, "file", opened)
        self._settle()

    def _settle(self) -> None:
        """Record the files that were closed since the last look."""
        if not self._opened or self._inside:
            return
        still_open = _open_files()
        with self._lock:
            done = [(path, one) for path, one in self._opened.items() if os.path.realpath(path) not in still_open]
            for path, _ in done:
                del self._opened[path]
        for path, opened in done:
            size = _size(path)
            if size and records.is_checkpoint(path, size, opened.step):
                self._record(path, path, "file", opened)


def _path(f: Any) -> Any:
    """Return the path that torch.save writes to, or None for a buffer."""
    if isinstance(f, (str, os.PathLike)):
        return os.fspath(f)
    name = getattr(f, "name", None)
    return name if isinstance(name, str) and callable(getattr(f, "flush", None)) and os.path.isfile(name) else None


def _writes(mode: str | None, flags: int) -> bool:
    return any(letter in mode for letter in "wax+") if mode else bool(flags & _WRITING)


def _replaces(mode: str | None, flags: int) -> bool:
    """Return whether a file is written from its beginning: one that grows is a log."""
    if mode:
        return "w" in mode or "x" in mode
    return bool(flags & (os.O_TRUNC | os.O_CREAT)) and not flags & os.O_APPEND


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _open_files() -> set[str]:
    """Return the real paths of the files that this process has open."""
    found = set()
    directory = Path("/proc/self/fd")
    for name in os.listdir(directory) if directory.exists() else ():
        try:
            found.add(os.readlink(directory / name))
        except OSError:
            continue  # the descriptor of this very listing
    return found
