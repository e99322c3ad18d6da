"""A view by overlays in namespaces: the script sees all files, and what it writes lies elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..plan import Plan
from ..records import FoundFile
from . import tree

LAUNCHER = Path(__file__).resolve().parent / "launcher.py"
STARTS_WITHIN = 120.0
MOST_COMPILED = 1 << 30  # bytes that starts may leave for later ones, besides those of one start
MEMORY = "50%"  # of /dev/shm, as the kernel's own default


class Unavailable(Exception):
    """This machine gives no such view; the text says why."""


class Overlay:
    """The nodes of one start. `kept` paths are shared by the nodes, all else is each node's own."""

    kind = "overlay"
    note = ""

    def __init__(
        self,
        plan: Plan,
        records: Path,
        state: Path,
        kept: Path | None,
        commands: list[tuple[list[str], dict[str, str]]],
        log: int,
    ) -> None:
        self.network = plan.network
        self._plan, self._records, self._state = plan, records, state
        self._compiled = records.parent / "compiled"
        self._codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._half = b""
        try:
            spec = self._spec(kept, commands, log)
            self._start(spec, log, len(commands))
        except OSError as problem:
            raise Unavailable(str(problem)) from problem

    def _spec(self, kept: Path | None, commands: list[tuple[list[str], dict[str, str]]], log: int) -> dict[str, Any]:
        rows = [self._kept(number, path, kept) for number, path in enumerate(self._plan.keep)]
        nodes = []
        for number, (command, variables) in enumerate(commands):
            own = self._state / f"node-{number}"
            row = {name: str(own / name) for name in ("upper", "work", "merged", "disks")}
            for path in row.values():
                os.makedirs(path)
            nodes.append({**row, "command": command, "variables": variables})
        return {
            "parent": os.getpid(), "network": self._plan.network, "workdir": self._plan.workdir, "memory": MEMORY,
            "records": str(self._records), "compiled": str(self._compiled), "log": log, "kept": rows, "nodes": nodes,
        }  # fmt: skip

    def _kept(self, number: int, path: str, source: Path | None) -> dict[str, str]:
        own = self._state / "kept" / str(number)
        row = {name: str(own / name) for name in ("upper", "work", "merged", "empty")}
        if source is not None:
            tree.copy_tree(source / str(number) / "upper", own / "upper")
        for place in row.values():
            os.makedirs(place, exist_ok=True)
        return {**row, "path": path, "lower": path if os.path.isdir(path) else row["empty"]}

    def _start(self, spec: dict[str, Any], log: int, count: int) -> None:
        path = self._state / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        path.chmod(0o600)
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(LAUNCHER), str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=log, pass_fds=[log], start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        started: set[int] = set()
        deadline = time.monotonic() + STARTS_WITHIN
        while len(started) < count:
            ended = self._process.poll() is not None  # asked first: what it told before its end is still to be read
            for row in self._rows(0.1):
                if "error" in row:
                    self.kill()
                    raise Unavailable(str(row["error"]))
                if "started" in row:
                    started.add(row["node"])
            if ended and len(started) < count:
                raise Unavailable(f"the launcher of the view ended with {self._process.returncode}")
            if time.monotonic() > deadline:
                self.kill()
                raise Unavailable(f"the view was not ready in {STARTS_WITHIN:.0f} s")

    def _rows(self, seconds: float) -> list[dict[str, Any]]:
        """Return what the launcher has told since the last call."""
        assert self._process.stdout is not None
        if not self._selector.select(seconds):
            return []
        text = self._half + (os.read(self._process.stdout.fileno(), 1 << 20) or b"")
        *lines, self._half = text.split(b"\n")
        rows = [json.loads(line) for line in lines if line]
        for row in rows:
            if "pid" in row:
                self._pids[row["node"]] = row["pid"]
            if "code" in row:
                self._codes[row["node"]] = row["code"]
        return rows

    def codes(self) -> dict[int, int]:
        """Return the exit codes of the nodes whose process 1 has ended; negative for a signal."""
        self._rows(0)
        return dict(self._codes)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to process 1 of each node."""
        for node, pid in self._pids.items():
            if node not in self._codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def left(self) -> list[int]:
        """Return the processes that outlived process 1 of their node: here the kernel ends them with it."""
        return []

    def kill(self) -> None:
        """End all processes, and wait for their end."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + 10.0
        while len(self._codes) < len(self._pids) and time.monotonic() < deadline and self._process.poll() is None:
            self._rows(0.1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process.kill()
        self._process.wait()
        self._rows(0)

    def written(self) -> int:
        """Return what the nodes have written, in bytes on disk."""
        return tree.size(self._state)

    def files(self) -> list[FoundFile]:
        """Return the files that were created or changed, by the paths that the script sees.

        The modules that Python compiled are none of them: the next starts find those, as a pod's image has them.
        """
        secrets, most = self._plan.secrets, tree.size(self._compiled) < MOST_COMPILED
        found: list[FoundFile] = []
        for upper, shown, kept in self._uppers():
            if most:
                tree.take_compiled(upper, tree.layer(self._compiled, shown))
            found += tree.changed(upper, Path(shown), shown, kept, secrets)
        hidden = (str(self._records) + "/", *(path.rstrip("/") + "/" for path in self._plan.keep))
        return [one for one in found[: tree.MOST_FILES] if one.kept or not one.path.startswith(hidden)]

    def _uppers(self) -> Iterator[tuple[Path, str, bool]]:
        """Yield the directories that hold what was written, their paths for the script, and whether they are kept."""
        for number, path in enumerate(self._plan.keep):
            yield self._state / "kept" / str(number) / "upper", path, True
        for node in sorted(self._state.glob("node-*")):
            yield node / "upper", "/", False
            for place in sorted((node / "disks").glob("*-place")):
                upper = place.with_name(place.name.replace("-place", "-upper"))
                yield upper, place.read_text(encoding="utf-8", errors="surrogateescape"), False
