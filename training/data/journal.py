"""The progress of a preparation on disk, so that a killed one can be continued; and its remote files."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.data.errors import DataError
from training.data.readers import Place
from training.data.remote_files import RemotePlace
from training.data.reporter import POLL, Reporter
from training.data.retries import Stopped
from training.data.sources import Source, SourceFile
from training.data.staging import JOURNAL

# Seconds of work that a kill may lose.
EVERY = 10.0
_AT_ONCE = 4
_FETCHED, _PART = "fetched", ".part"


class Journal:
    """journal.json in a staging directory. `saved` is the entry of an earlier process, empty without one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / JOURNAL
        self._written = time.monotonic()
        try:
            content = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            content = {}
        self.saved: dict[str, Any] = content if isinstance(content, dict) else {}

    def due(self) -> bool:
        """Whether EVERY seconds have passed since the last entry."""
        return time.monotonic() - self._written >= EVERY

    def write(self, content: dict[str, Any]) -> None:
        """Replace the entry atomically. Raises OSError."""
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as stream:
            json.dump(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, self._path)
        self._written = time.monotonic()

    def forget(self) -> None:
        """Remove an earlier process's work except the files it fetched. Raises OSError."""
        self.saved = {}
        for path in self._directory.iterdir():
            if path.name not in (_FETCHED, JOURNAL):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        """Remove the journal and the fetched files: the dataset is complete. Raises OSError."""
        self._path.unlink(missing_ok=True)
        shutil.rmtree(self._directory / _FETCHED, ignore_errors=True)

    def fetch(self, source: Source, reporter: Reporter) -> Source:
        """Fetch the source's remote files into the staging directory; return the source with local paths.

        Raises DataError, OSError.
        """
        folder = self._directory / _FETCHED
        folder.mkdir(exist_ok=True)
        self.write(self.saved)
        stop = threading.Event()
        done = 0

        def text() -> str:
            return f"fetched {done:,} of {len(source.files):,} files"

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                futures = [
                    pool.submit(_fetched, file, folder / f"{number:06d}-{file.path.name}", stop, reporter.say)
                    for number, file in enumerate(source.files)
                ]
                left = set(futures)
                while left:
                    finished, left = wait(left, timeout=POLL, return_when=FIRST_EXCEPTION)
                    done = sum(future.done() for future in futures)
                    for future in finished:
                        future.result()
                    reporter.tick(text)
            finally:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
        return replace(source, files=tuple(future.result() for future in futures))

    def first_part(self, source: Source, size: int, reporter: Reporter) -> Source:
        """Copy the first documents, `size` bytes of text, to the staging directory as a source."""
        folder = self._directory / _FETCHED
        folder.mkdir(exist_ok=True)
        path = folder / "first.jsonl"
        files = [replace(file, path=_telling(file.path, reporter.say, threading.Event())) for file in source.files]
        written = 0

        def text() -> str:
            return f"read {written / 1e6:,.1f} of the first {size / 1e6:,.1f} MB"

        with path.open("w", encoding="utf-8") as stream:
            for document in replace(source, files=tuple(files)).documents():
                stream.write(json.dumps({"text": document.text}) + "\n")
                written += len(document.data)
                if written >= size:
                    break
                reporter.tick(text)
        here = SourceFile(path, path.name, path.stat().st_size, 0)
        return Source(source.name, (here,), "text", single=True)


def _telling(place: Place, tell: Callable[[str], None], stop: threading.Event) -> Place:
    return replace(place, tell=tell, stop=stop) if isinstance(place, RemotePlace) else place


def _fetched(file: SourceFile, target: Path, stop: threading.Event, tell: Callable[[str], None]) -> SourceFile:
    """Fetch a remote file and return it with its local path; return a local one unchanged."""
    if not isinstance(file.path, RemotePlace):
        return file
    if not target.exists():
        part = target.with_name(target.name + _PART)
        try:
            with _telling(file.path, tell, stop).open("rb") as stream, part.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
        except Stopped:
            raise DataError(f"{file.path}: not fetched, because another file failed") from None
        os.replace(part, target)
    return replace(file, path=target, size=target.stat().st_size)
