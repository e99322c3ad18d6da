"""Reads what a proof in a cluster says and finds: `python3 -c SOURCE` in one of its pods.

`yard prove --submit` asks by lines of standard input, JSON objects with the key `directory`, and gets one line for
each. The program needs the standard library of Python 3.8 or newer only.

    {"from": BYTES}     the rows of progress.jsonl behind these bytes, and the size of the records or null
    {"at": BYTES}       a part of the records, as base64
    {"fetched": true}   the records have arrived, so the pods may end
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

PART = 1 << 20  # bytes
PROGRESS, ARCHIVE, FETCHED = "progress.jsonl", "records.tar.gz", "fetched"


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one question. Raises OSError and KeyError."""
    directory = Path(asked["directory"])
    if "fetched" in asked:
        (directory / FETCHED).touch()
        return {}
    if "at" in asked:
        with (directory / ARCHIVE).open("rb") as file:
            file.seek(asked["at"])
            return {"part": base64.b64encode(file.read(PART)).decode()}
    archive = directory / ARCHIVE
    text = b""
    if (directory / PROGRESS).exists():
        with (directory / PROGRESS).open("rb") as file:
            file.seek(asked["from"])
            text = file.read(PART)
    text = text[: text.rfind(b"\n") + 1]
    size = archive.stat().st_size if archive.exists() else None
    rows = [json.loads(line) for line in text.splitlines()]
    return {"rows": rows, "next": asked["from"] + len(text), "size": size}


def main() -> None:
    """Answer each line of standard input."""
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except (OSError, KeyError, ValueError) as problem:
            found = {"error": f"{type(problem).__name__}: {problem}"}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
