"""Reads a run directory and prints its content as one JSON object: `python3 - RUN_DIRECTORY`.

`kubectl exec` sends this file to a pod that mounts the run's volume, so it uses only the standard library of
Python 3.8 or newer. It only reads. An incomplete file is skipped: its writer may still be active.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

TAIL = 262144  # bytes at the end of a file of lines
RECORDS = 400  # lines of metrics, at most
LONGEST = 4 << 20  # bytes of one object
PARTS = ("heartbeat", "failures", "retries")
CGROUP = Path("/sys/fs/cgroup")


def regular(path: Path) -> BinaryIO:
    """Open a regular file; a link may lead to another run, and a FIFO would never answer."""
    if path.parent.name in PARTS and path.parent.is_symlink():
        raise OSError("the directory is a link")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if it is missing or incomplete."""
    try:
        with regular(path) as file:
            value = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def tail(path: Path, size: int) -> list[str]:
    """Return the complete lines in the last `size` bytes of a file."""
    try:
        with regular(path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            data = file.read()
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").splitlines()
    return lines[1:] if length > size else lines


def every(directory: Path, pattern: str) -> dict[str, dict[str, Any]]:
    """Return the JSON objects of a directory by file name."""
    found = [(path.name, read_json(path)) for path in sorted(directory.glob(pattern))]
    return {name: value for name, value in found if value is not None}


def checkpoints(directory: Path) -> list[dict[str, Any]]:
    """Return step, time and bytes (by the manifest) of the committed checkpoints."""
    found = []
    for path in sorted(directory.glob("step-*/MANIFEST.json")):
        number = path.parent.name[len("step-") :]
        manifest = read_json(path)
        if number.isdigit() and manifest is not None:
            files = manifest.get("files") or {}
            sizes = [one.get("size", 0) for one in (files.values() if isinstance(files, dict) else files)]
            found.append({"step": int(number), "time": path.stat().st_mtime, "bytes": sum(sizes)})
    return sorted(found, key=lambda one: one["step"])


def memory() -> dict[str, int]:
    """Return the container's memory limit and use in bytes, and its number of OOM kills."""
    found: dict[str, int] = {}
    names = {
        "limit": ("memory.max", "memory/memory.limit_in_bytes"),
        "current": ("memory.current", "memory/memory.usage_in_bytes"),
    }
    for key, paths in names.items():
        for name in paths:
            try:
                text = (CGROUP / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():
                found[key] = int(text)
                break
    for line in tail(CGROUP / "memory.events", 4096):
        if line.startswith("oom_kill "):
            found["oom_kills"] = int(line.split()[1])
    return found


def look(run: Path) -> dict[str, Any]:
    metrics = tail(run / "metrics.jsonl", TAIL)[-RECORDS:]
    info = read_json(run / "run.json") or {}
    configured = info.get("config") or {}
    changes = run / "heartbeat" / "rank-00000.phases.jsonl"
    return {
        "directory": str(run),
        "exists": run.is_dir(),
        "now": time.time(),
        "steps": (configured.get("train") or {}).get("steps"),
        "world_size": info.get("world_size"),
        "config": json.dumps(configured) if configured else None,
        "heartbeats": every(run / "heartbeat", "rank-*.json"),
        "failures": every(run / "failures", "*.json"),
        "retries": every(run / "retries", "*.json"),
        "end": read_json(run / "end.json"),
        "report": read_json(run / "report.json"),
        "checkpoints": checkpoints(run / "checkpoints"),
        "quarantined": sorted(path.name for path in (run / "checkpoints").glob("*.bad*")),
        "metrics": metrics,
        "phases": tail(changes, TAIL),
        "phases_cut": changes.is_file() and changes.stat().st_size > TAIL,
        "attempts": tail(run / "attempts.jsonl", TAIL),
        "skipped": tail(run / "skipped.jsonl", TAIL)[-RECORDS:],
        "memory": memory(),
    }


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1]))))
