"""Puts changed files into the pod of a job in development: `python3 -c SOURCE`.

`kubectl exec` sends this program to each pod of the job. `yard job sync` takes one action in all pods before
the next. The program uses only the standard library of Python 3.8 or newer. It answers each line of standard
input, a JSON object, with another one. The key `error` of an answer says why it could not be done.

    {"action": "digests", "names": [...]}   the SHA-256 of the files that the command would use, or null
    {"action": "stage", "id": ..., "files": {name: base64}}   write them beside the others
    {"action": "discard", "id": ...}        remove what was staged
    {"action": "place", "id": ...}          put the files in place
    {"action": "stop", "id": ...}           wait until process 1 has stopped its command
    {"action": "start", "id": ...}          wait until process 1 has started it again
    {"action": "state"}                     what process 1 says, and the newest line of metrics.jsonl

`training.pod.development` describes the directory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

SECONDS = 60.0  # for process 1 to do what is asked
RUNS = ("/shared/run", "/trainyard-run", "/tmp/trainyard-run")  # those of the agent, in its order
TAIL = 65536  # bytes of metrics.jsonl


class Fault(Exception):
    """Why it cannot be done, for the user."""


def parts_of(name: str) -> list[str]:
    """Return the parts of a file's name; Fault for one that is not inside a directory."""
    parts = name.split("/")
    if not name.endswith(".py") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise Fault(f"not the name of a Python file: {name[:200]!r}")
    return parts


def digests(base: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The digest of each file: the changed one, or that of the image."""
    found: dict[str, Any] = {}
    for name in given["names"]:
        found[name] = None
        for place in (base / "files", Path.cwd()):
            path = place.joinpath(*parts_of(name))
            if path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
                break
    return {"digests": found}


def stage(base: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Write files into a directory of their own, where nothing reads them."""
    staged = _staged(base, given)
    for name, text in given["files"].items():
        path = staged.joinpath(*parts_of(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(base64.b64decode(text, validate=True))
            file.flush()
            os.fsync(file.fileno())
    return {"staged": len(given["files"])}


def discard(base: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Remove what was staged."""
    shutil.rmtree(str(_staged(base, given)), ignore_errors=True)
    return {}


def place(base: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Put the staged files in place."""
    staged = _staged(base, given)
    files = base / "files"
    moved = 0
    for path in sorted(staged.rglob("*.py")) if staged.is_dir() else []:
        names = path.relative_to(staged).parts
        target = files
        target.mkdir(exist_ok=True)
        for part in names[:-1]:
            target = target / part
            if target.is_symlink():  # a link to the image's directory
                target.unlink()
            target.mkdir(exist_ok=True)
        os.replace(str(path), str(target / names[-1]))
        for compiled in (target / "__pycache__").glob("*.pyc"):
            if compiled.name.split(".")[0] == names[-1][:-3]:
                compiled.unlink()
        moved += 1
    shutil.rmtree(str(staged), ignore_errors=True)
    return {"placed": moved}


def stop(base: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Let process 1 stop its command."""
    return {"time": _ask(base, given["id"], "stopped")["time"]}


def start(base: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Let process 1 start its command; `time` is this pod's clock."""
    return {"time": _ask(base, given["id"], "started")["time"]}


def state(base: Path, _given: dict[str, Any]) -> dict[str, Any]:
    """What process 1 says, and the newest line of the run's metrics."""
    said = _read(base / "state.json")
    run = os.environ.get("TRAINYARD_RUN") or next(filter(os.path.isdir, RUNS), "")
    last: Any = None
    try:
        with Path(run, "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
        last = next((json.loads(line) for line in reversed(lines) if line.endswith("}")), None)
    except (OSError, ValueError):
        pass
    return {"state": said, "last": last}


def _staged(base: Path, given: dict[str, Any]) -> Path:
    name = str(given["id"])
    if not name.isalnum():
        raise Fault(f"not an id: {name[:80]!r}")
    return base / ("staged-" + name)


def _ask(base: Path, name: str, wanted: str) -> dict[str, Any]:
    """Ask process 1 for a state, and wait until it is reached."""
    request = base / "request.json"
    temporary = base / f".request.{os.getpid()}"
    temporary.write_text(json.dumps({"id": name, "wanted": wanted}), encoding="utf-8")
    os.replace(str(temporary), str(request))
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        said = _read(base / "state.json")
        if said.get("id") == name and said.get("state") in (wanted, "failed"):
            return said
        time.sleep(0.05)
    raise Fault(f"process 1 has not {wanted} its command within {SECONDS:.0f} s")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


ACTIONS = {one.__name__: one for one in (digests, stage, discard, place, stop, start, state)}


def answer(base: str, line: str) -> dict[str, Any]:
    """Answer one question, with the reason in `error` if that fails."""
    try:
        if not os.path.isdir(base):
            raise Fault("the pod has no directory for changed code: it was not submitted with --dev")
        given = json.loads(line)
        return ACTIONS[given["action"]](Path(base), given)
    except Fault as problem:
        return {"error": str(problem)}
    except OSError as problem:
        return {"error": f"{problem.filename or base}: {problem.strerror or problem}"}
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}


def main() -> None:
    """Answer each line of standard input."""
    for line in sys.stdin:
        print(json.dumps(answer(os.environ.get("TRAINYARD_CODE", ""), line)), flush=True)


if __name__ == "__main__":
    main()
