"""Prints the files below a path with size and SHA-256 as JSON: `python3 - BASE PATH`, PATH relative to BASE.

It is sent to a pod, so it needs only Python's own library, of 3.8 or newer. Files that are still written
(`*.tmp`, directories `*.tmp`) are left out; a symbolic link is not followed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                return found.hexdigest()
            found.update(chunk)


def files(base: Path, wanted: str) -> list[dict[str, Any]]:
    """Return the files at or below `wanted`: name relative to `base`, size, digest."""
    start = base / wanted
    paths = [start] if start.is_file() else sorted(start.rglob("*"))
    found = []
    for path in paths:
        unfinished = any(part.endswith(".tmp") for part in path.relative_to(base).parts)
        if path.is_file() and not path.is_symlink() and not unfinished:
            size = path.stat().st_size
            name = path.relative_to(base).as_posix()
            found.append({"name": name, "size": size, "sha256": digest(path)})
    return found


if __name__ == "__main__":
    print(json.dumps(files(Path(sys.argv[1]), sys.argv[2])))
