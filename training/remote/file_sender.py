"""Sends the files below a path, with SHA-256, to standard output: `send(BASE, PATH, KNOWN)`.

`kubectl exec` sends this file to a pod, so it uses only the standard library of Python 3.8 or newer. An
active run replaces, deletes and extends its files, so all files are opened before the first one is read: an
open file stays complete. The digest is computed from the bytes that are sent.

The stream has a line of JSON for each file (`name` relative to BASE), then its bytes in chunks, each after a
line with its length, then a line `0` and the digest. Of a file in KNOWN only the digest is sent, as `sha256`
in its line of JSON, and with KNOWN None all files are only named. A line `+` is a sign of life. The last line
is `end`: a stream without it was cut short.

Unfinished files (below `*.tmp`), deleted files (below `*.deleting`) and symbolic links are left out.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import IO

CHUNK = 1 << 20
TRIES = 20  # at opening all files before one of them is deleted
UNFINISHED = (".tmp", ".deleting")


def opened(base: Path, wanted: str) -> list[tuple[str, IO[bytes]]]:
    """Open the files at or below `wanted`, by name. Start again if one of them is deleted meanwhile.

    A manifest comes after the files beside it, so that a copied manifest means a complete checkpoint.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for _ in range(TRIES):
        found: list[tuple[str, IO[bytes]]] = []
        try:
            for path in _paths(base, wanted):
                found.append((path.relative_to(base).as_posix(), path.open("rb")))
            return found
        except FileNotFoundError:
            for _name, file in found:
                file.close()
    raise FileNotFoundError(f"the files at {wanted} change faster than they can be opened")


def _paths(base: Path, wanted: str) -> list[Path]:
    start = base / wanted
    if base.resolve() not in (start.resolve(), *start.resolve().parents):
        raise OSError(errno.EACCES, "a symbolic link that leads out of the run directory", wanted)
    found = [start] if start.is_file() else start.rglob("*")
    whole = [
        path
        for path in found
        if path.is_file()
        and not path.is_symlink()
        and not any(part.endswith(UNFINISHED) for part in path.relative_to(base).parts)
    ]
    return sorted(whole, key=lambda path: (path.parent, path.name == "MANIFEST.json", path.name))


def send(base: Path, wanted: str, known: set[str] | None, out: IO[bytes]) -> None:
    """Write the files at or below `wanted` to `out`; of those in `known` only the digest."""
    for name, file in opened(base, wanted):
        with file:
            size = os.fstat(file.fileno()).st_size
            head = {"name": name, "size": size}
            if known is None or name in known:
                digest = {} if known is None else {"sha256": _digest(file, out)}
                _line(out, json.dumps({**head, **digest}))
                continue
            _line(out, json.dumps(head))
            _send_one(file, size, out)
    _line(out, "end")


def _digest(file: IO[bytes], out: IO[bytes]) -> str:
    found = hashlib.sha256()
    for number, chunk in enumerate(iter(lambda: file.read(CHUNK), b"")):
        found.update(chunk)
        if number % 64 == 0:
            _line(out, "+")
    return found.hexdigest()


def _send_one(file: IO[bytes], size: int, out: IO[bytes]) -> None:
    found = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        found.update(chunk)
        _line(out, str(len(chunk)))
        out.write(chunk)
    _line(out, f"0 {found.hexdigest()}")


def _line(out: IO[bytes], text: str) -> None:
    out.write(text.encode() + b"\n")
    out.flush()


def main(base: str, wanted: str, known: list[str] | None) -> None:
    """Send to standard output; exit with 1 and the reason on standard error if that fails."""
    try:
        send(Path(base), wanted, None if known is None else set(known), sys.stdout.buffer)
    except OSError as problem:
        sys.exit(f"{problem.filename or wanted}: {problem.strerror or problem}")
