"""The sender's end of training/stage/push.py: it offers files of its machine, and sends what is wanted."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from training.data.sources import leads_on

CHUNK = 1 << 20
LONGEST = 1 << 28  # bytes of one answer


class Broken(Exception):
    """The stream broke off; another attempt continues."""


class Changed(Exception):
    """A file became shorter while it was sent, or the receiver wants what was not offered."""


class Offer:
    """A file, or the files below a directory whose names match, without hidden ones.

    Links are followed, because they are the sender's own, those to directories only where they lead out of the
    directory. `total` are the bytes of all files, and `there` those that the receiver has, as far as the last attempt
    knows.
    """

    def __init__(self, root: Path, include: tuple[str, ...]) -> None:
        found = {root.name: root} if root.is_file() else dict(_files(root))
        self.files = {
            name: path
            for name, path in sorted(found.items())
            if not include or any(fnmatch.fnmatchcase(name, pattern) for pattern in include)
        }
        self._source = root.name
        self._sizes = {name: path.stat().st_size for name, path in self.files.items()}
        self.total, self.there = sum(self._sizes.values()), 0

    def made(
        self, out: IO[bytes], answers: IO[bytes], say: Callable[[str], None], sent: Callable[[], None]
    ) -> dict[str, Any]:
        """Offer the files, send what is wanted, and return the receiver's answer, empty if it went away.

        `sent` is called after the last byte. Raises Broken, Changed.
        """
        versions = {name: str(path.stat().st_mtime_ns) for name, path in self.files.items()}
        heads = [[name, size, versions[name]] for name, size in self._sizes.items()]
        with contextlib.suppress(BrokenPipeError):
            _line(out, json.dumps({"source": self._source, "files": heads}))
            answer = _read(answers)
            if "want" not in answer:
                return answer
            self._send(out, answer["want"], say)
            sent()
            return _read(answers)
        return {}

    def _send(self, out: IO[bytes], wanted: list[Any], say: Callable[[str], None]) -> None:
        offsets = {str(name): int(offset) for name, offset in wanted}
        if not offsets.keys() <= self.files.keys():
            raise Changed("the receiver wants files that were not offered: do not trust it")
        self.there = self.total - sum(self._sizes[name] - offset for name, offset in offsets.items())
        for name, offset in offsets.items():
            found, at = hashlib.sha256(), 0
            with self.files[name].open("rb") as file:
                while chunk := file.read(min(CHUNK, self._sizes[name] - at)):
                    found.update(chunk)
                    fresh = chunk[max(0, offset - at) :]
                    at += len(chunk)
                    out.write(fresh)
                    self.there += len(fresh)
                    say(f"{self.there / 2**20:,.1f} of {self.total / 2**20:,.1f} MiB, {name}")
            if at < self._sizes[name]:
                raise Changed(f"{self.files[name]} became shorter while it was sent")
            _line(out, found.hexdigest())


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    read = [root.resolve()]
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folders[:] = [name for name in folders if leads_on(Path(folder, name), read)]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        yield from ((path.relative_to(root).as_posix(), path) for path in paths if path.is_file())


def _read(stream: IO[bytes]) -> dict[str, Any]:
    """Return the receiver's next line; empty if it ended."""
    line = stream.readline(LONGEST)
    try:
        found = json.loads(line) if line else {}
    except (ValueError, RecursionError):
        raise Broken(f"unexpected answer: {line[:80]!r}") from None
    return found if isinstance(found, dict) else {}


def _line(out: IO[bytes], text: str) -> None:
    out.write(text.encode() + b"\n")
    out.flush()
