"""The pods of a small job as the nodes of one start: they share a directory, in which one pod orders and all answer.

`<directory>/orders.jsonl` has the orders of the first pod, `<directory>/pods/<host>.jsonl` the answers of each. A file
is only appended to, so that network file systems show the newest lines to whoever opens it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ..plan import Plan, Start
from ..records import FoundFile
from . import tree

ORDERS = "orders.jsonl"
TICK = 0.05
ACKNOWLEDGED = 120.0  # seconds that a pod has to end its processes and to look at its files
LOG_BYTES = 16 << 20

Commands = List[Tuple[List[str], Dict[str, str]]]


class Gone(Exception):
    """A pod of the proof was started again or does not answer; the text says which."""


class Lines:
    """A file of JSON objects, one a line, which one process appends to and others read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def append(self, row: dict[str, Any]) -> None:
        """Append one object as one write."""
        descriptor = os.open(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, (json.dumps(row) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def new(self) -> list[dict[str, Any]]:
        """Return the objects that were appended since the last call; none where there is no file yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                text = file.read(64 << 20)
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Place:
    """Where the starts of a proof run: pods that share `directory`. `hosts` are their names, in the order of nodes."""

    def __init__(self, directory: Path, hosts: list[str]) -> None:
        self.directory = directory
        self._orders = Lines(directory / ORDERS)
        self._answers = {host: Lines(directory / "pods" / f"{host}.jsonl") for host in hosts}
        self._seen: dict[str, list[dict[str, Any]]] = {host: [] for host in hosts}
        self._number = 0

    def begin(self, plan: Plan, start: Start, out: Path, commands: Commands, log: int) -> Pods:
        """Give the pods what `start.source` kept, and order them to start. Raises OSError."""
        source = self.directory / "saved" / start.source if start.source else None
        for index, kept in enumerate(plan.keep):
            _empty(Path(kept))
            if source is not None and (source / str(index)).is_dir():
                tree.copy_inside(source / str(index), Path(kept))
        self._number += 1
        rows = dict(zip(self._seen, ({"command": int(words[0]), "variables": given} for words, given in commands)))
        self.order("start", start=start.name, pods=rows)
        return Pods(self, plan, start, out, log)

    def remove(self, directory: Path) -> None:
        """Remove what a start kept. `directory` has its records."""
        tree.remove_tree(self.directory / "saved" / directory.name)

    def order(self, what: str, **more: Any) -> None:
        """Append an order for the current start."""
        self._orders.append({"do": what, "number": self._number, **more})

    def answers(self, key: str) -> dict[str, dict[str, Any]]:
        """Return what each pod says of the current start under a key. Raises Gone."""
        for host, lines in self._answers.items():
            self._seen[host] += lines.new()
            again = next((row for row in self._seen[host] if "gone" in row), None)
            if again is not None:
                raise Gone(f"{host}: {again['gone']}")
        rows = {
            host: next((row for row in rows if row.get("number") == self._number and key in row), None)
            for host, rows in self._seen.items()
        }
        return {host: row for host, row in rows.items() if row is not None}

    def node(self, host: str) -> int:
        """Return the number of a pod."""
        return list(self._seen).index(host)


class Pods:
    """The nodes of one start."""

    kind = "pods"
    network = True

    def __init__(self, place: Place, plan: Plan, start: Start, out: Path, log: int) -> None:
        self._place, self._plan, self._start, self._out, self._log = place, plan, start, out, log
        self._over: dict[str, dict[str, Any]] = {}

    def codes(self) -> dict[int, int]:
        """Return the exit codes of the nodes whose command has ended; negative for a signal."""
        return {self._place.node(host): int(row["code"]) for host, row in self._place.answers("code").items()}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command of each node."""
        self._place.order("signal", signal=int(number))

    def left(self) -> list[int]:
        """Processes that outlive a command are ended in their pods, without being named."""
        return []

    def kill(self) -> None:
        """End all processes in all pods, wait for their end, and save what the start kept. Raises Gone."""
        if self._over:
            return
        self._place.order("kill")
        deadline = time.monotonic() + ACKNOWLEDGED
        while len(over := self._place.answers("files")) < self._plan.nodes:
            if time.monotonic() > deadline:
                raise Gone(f"{self._plan.nodes - len(over)} of {self._plan.nodes} pods do not answer")
            time.sleep(TICK)
        self._over = over
        for host in over:
            self._copy_log(self._out / self._start.name / f"log-{self._place.node(host)}")
        if self._start.name in {one.source for one in self._plan.starts}:
            for index, kept in enumerate(self._plan.keep):
                tree.copy_tree(Path(kept), self._place.directory / "saved" / self._start.name / str(index))

    def _copy_log(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                left = memoryview(file.read(LOG_BYTES))
        except FileNotFoundError:
            return
        while left:
            left = left[os.write(self._log, left) :]
        path.unlink()

    def written(self) -> int:
        """Return what the kept directories take on disk, in bytes."""
        return sum(tree.size(Path(kept)) for kept in self._plan.keep)

    def files(self) -> list[FoundFile]:
        """Return the files in the kept directories, and those that each pod found elsewhere."""
        found = [one for kept in self._plan.keep for one in tree.changed(Path(kept), None, kept, True, self._secrets)]
        elsewhere = {row["path"]: FoundFile(**row) for answer in self._over.values() for row in answer["files"]}
        return [*found, *elsewhere.values()]

    @property
    def _secrets(self) -> dict[str, str]:
        return self._plan.secrets


def _empty(directory: Path) -> None:
    """Remove what a directory has; it may be a mount, and stays."""
    for row in os.scandir(str(directory)):
        if row.is_dir(follow_symlinks=False):
            tree.remove_tree(Path(row.path))
        else:
            os.unlink(row.path)
