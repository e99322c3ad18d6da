"""Process 1 of a pod in a proof: `agent.pyz --prove DIRECTORY COUNTS -- WORDS ...`.

All pods of the job share DIRECTORY. The first one that comes leads: it carries out the plan, which the variable
TRAINYARD_PROVE_PLAN holds, and orders each start. Each pod, also the leading one, starts the commands with its own
variables, ends them, and looks at its files. WORDS are several commands one after the other: COUNTS says how many words
each has, such as 4,4,5.

The records of the proof wait in DIRECTORY for the one who asked for it, for ten minutes. Then, or on SIGTERM, the
directory is removed.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import io
import itertools
import os
import signal
import socket
import stat
import subprocess
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.remote.proof_reader import ARCHIVE, FETCHED, PROGRESS

from . import plan as plans
from . import runner
from .records import FoundFile
from .view import tree
from .view.copied import descendants
from .view.pods import ORDERS, TICK, Gone, Lines, Place
from .watch import Log

COME = 600.0  # seconds that the pods have to come together
FETCH = 600.0  # seconds that the records wait
MOST_FILES = 50_000
_CODE = "trainyard/training/prove/"  # in the archive
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


class _Stopped(BaseException):
    """The pod was asked to stop."""


def main(arguments: list[str], archive: str) -> int:
    """Take part in a proof until it is over; return 0, and 1 where it failed. `archive` is the agent's file."""
    directory, counts, words = Path(arguments[0]), [int(one) for one in arguments[1].split(",")], arguments[3:]
    plan = plans.from_text(base64.b64decode(os.environ.pop(plans.VARIABLE)).decode())
    commands = []
    for count in counts:
        commands.append(words[:count])
        words = words[count:]
    host = socket.gethostname()
    (directory / "pods").mkdir(parents=True, exist_ok=True)
    answers = Lines(directory / "pods" / f"{host}.jsonl")
    if answers.path.exists():
        again = "its container was started again"
        answers.append({"gone": again})
        # The pod that leads may be this one: then no other can say that the proof has failed.
        Lines(directory / PROGRESS).append({"state": "failed", "note": f"{host}: {again}"})
        return 1
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    answers.append({"here": host})
    lead = _lead(plan, directory, archive, stop)
    try:
        return Node(plan, directory, answers, commands, stop).work()
    finally:
        if lead is not None:
            stop.set()
            lead.join(15.0)
            _clear(plan, directory)


def _lead(plan: plans.Plan, directory: Path, archive: str, stop: threading.Event) -> threading.Thread | None:
    """Start to lead, if no other pod does."""
    try:
        os.close(os.open(str(directory / "lead"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return None
    lead = threading.Thread(target=lambda: _carry_out(plan, directory, archive, stop), daemon=True)
    lead.start()
    return lead


def _carry_out(plan: plans.Plan, directory: Path, archive: str, stop: threading.Event) -> None:
    progress = Lines(directory / PROGRESS)

    def say(row: dict[str, Any]) -> None:
        if stop.is_set():
            raise _Stopped
        progress.append(row)

    try:
        place = Place(directory, _hosts(plan, directory, say, stop))
        out = directory / "records"
        out.mkdir()
        runner.run(plan, out, say, place, _unpacked(directory, archive))
        _pack(out, directory)
    except _Stopped:
        return
    except Exception as problem:  # noqa: BLE001 - whatever it is, the one who asked has to hear of it
        text = str(problem) if isinstance(problem, Gone) else f"{type(problem).__name__}: {problem}"
        progress.append({"state": "failed", "note": text})
    deadline = time.monotonic() + FETCH
    while not (directory / FETCHED).exists() and time.monotonic() < deadline and not stop.is_set():
        time.sleep(1.0)
    Lines(directory / ORDERS).append({"do": "end"})


def _hosts(plan: plans.Plan, directory: Path, say: runner.Say, stop: threading.Event) -> list[str]:
    """Wait for all pods, and return their names in order."""
    deadline, told = time.monotonic() + COME, 0.0
    while True:
        hosts = sorted(path.stem for path in (directory / "pods").glob("*.jsonl"))
        if len(hosts) == plan.nodes:
            return hosts
        if len(hosts) > plan.nodes or time.monotonic() > deadline or stop.is_set():
            raise Gone(f"{len(hosts)} of {plan.nodes} pods came: {', '.join(hosts)}")
        if time.monotonic() - told > 10.0:
            told = time.monotonic()
            say({"state": "waiting", "note": f"{len(hosts)} of {plan.nodes} pods are there"})
        time.sleep(0.5)


def _unpacked(directory: Path, archive: str) -> Path:
    """Unpack the probe, which has to be a real directory, and return the path that loads it."""
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            if name.startswith(_CODE):
                target = directory / "code" / name[len(_CODE) :]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read(name))
    return directory / "code" / "path"


def _pack(out: Path, directory: Path) -> None:
    """Write the records of all starts as one archive, whole or not at all."""
    temporary = directory / (ARCHIVE + ".tmp")
    with tarfile.open(str(temporary), "w:gz") as archive:
        for path in sorted(out.glob("*/*")):
            if path.is_file() and not path.name.startswith("probe-"):
                info = tarfile.TarInfo(path.relative_to(out).as_posix())
                content = path.read_bytes()
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    temporary.replace(directory / ARCHIVE)


def _clear(plan: plans.Plan, directory: Path) -> None:
    """Remove everything that the proof wrote to the volumes."""
    for kept in plan.keep:
        for row in tree.entries(Path(kept)):
            if not row.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(row.path)
    tree.remove_tree(directory)


class Node:
    """One pod: the command that runs in it, and the files that it leaves outside of what survives."""

    def __init__(
        self, plan: plans.Plan, directory: Path, answers: Lines, commands: list[list[str]], stop: threading.Event
    ) -> None:
        self._plan, self._directory, self._answers, self._commands = plan, directory, answers, commands
        self._stop, self._host = stop, socket.gethostname()
        self._orders = Lines(directory / ORDERS)
        self._child: subprocess.Popen[bytes] | None = None
        self._log: Log | None = None
        self._number, self._begun, self._told = 0, 0.0, True
        self._roots = self._scratch()
        self._before = {path for path, _ in self._found()}

    def work(self) -> int:
        """Do what is ordered until the proof ends, and return the exit code."""
        try:
            # The pod that leads removes the directory: another one may not have read its last order yet.
            while not self._stop.is_set() and self._directory.exists():
                for order in self._orders.new():
                    if order["do"] == "end":
                        return 0
                    getattr(self, "_" + order["do"])(order)
                self._look()
                time.sleep(TICK)
            return 0
        finally:
            self._end()

    def _start(self, order: dict[str, Any]) -> None:
        mine = order["pods"][self._host]
        records_of = self._directory / "records" / order["start"]
        node = list(order["pods"]).index(self._host)
        self._number, self._begun, self._told = order["number"], time.time(), False
        self._log = Log(records_of / f"log-{node}")
        own = {**os.environ, **mine["variables"]}
        path = [mine["variables"]["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
        own["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        try:
            self._child = subprocess.Popen(
                self._commands[mine["command"]], env=own, stdin=subprocess.DEVNULL, stdout=self._log.descriptor,
                stderr=self._log.descriptor, start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            self._child = None
            text = f"{self._commands[mine['command']][0]}: {problem.strerror}\n"
            os.write(self._log.descriptor, text.encode(errors="replace"))
            self._tell(127 if isinstance(problem, FileNotFoundError) else 126)

    def _signal(self, order: dict[str, Any]) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(order["signal"])

    def _kill(self, order: dict[str, Any]) -> None:
        """End everything, say how the command ended, and remove what a new pod would not have."""
        self._end()
        if not self._told:
            self._look()
        if self._log is not None:
            self._log.close()
            self._log = None
        self._answers.append({"number": order["number"], "files": [asdict(one) for one in self._left_files()]})

    def _look(self) -> None:
        """Read the end of the command and of adopted processes."""
        if self._child is not None and not self._told and self._child.poll() is not None:
            self._tell(int(self._child.returncode))
        own = self._child.pid if self._child is not None else 0
        for pid in descendants(os.getpid()):
            if pid != own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _tell(self, code: int) -> None:
        self._told = True
        self._answers.append({"number": self._number, "code": code})

    def _end(self) -> None:
        deadline = time.monotonic() + 10.0
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self._child is not None:
                self._child.poll()
            self._look()
            time.sleep(0.02)

    def _scratch(self) -> list[str]:
        """Return the directories of this pod that a script may write to, and that a new pod has as they were."""
        names = [os.getcwd(), os.environ.get("HOME", ""), tempfile.gettempdir(), *self._plan.scratch]
        real = sorted({os.path.realpath(name) for name in names if name and os.path.isdir(name)} - {"/"})
        return [one for one in real if not any(one.startswith(other + "/") for other in real)]

    def _found(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield what lies below those directories and does not survive a pod."""
        survives = [os.path.realpath(one) for one in [*self._plan.keep, str(self._directory)]]
        rows = (row for root in self._roots for row in tree.entries(Path(root)))
        for row in itertools.islice(rows, MOST_FILES):
            if not any(row.path == one or row.path.startswith(one + "/") for one in survives):
                with contextlib.suppress(OSError):
                    yield row.path, row.stat(follow_symlinks=False)

    def _left_files(self) -> list[FoundFile]:
        """Return the files that the last start wrote outside of what survives, and remove what is new."""
        shapes = tree.patterns(self._plan.secrets)
        files: list[FoundFile] = []
        directories: list[str] = []
        for path, state in list(self._found()):
            if state.st_ctime < self._begun - 1.0:
                continue
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(state.st_mode):
                    directories.append(path)
                    continue
                if stat.S_ISREG(state.st_mode) and len(files) < tree.MOST_FILES:
                    files.append(FoundFile(path, state.st_size, False, tree.secret(path, shapes)))
                if path not in self._before:
                    os.unlink(path)
        for path in reversed(directories):
            if path not in self._before:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        return files
