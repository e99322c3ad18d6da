"""How often process 1 starts its command, and the edit loop.

TRAINYARD_RESTARTS is the number of new starts after failures that another attempt may cure. It stands in for
the kubelet where the pod's restartPolicy has to be Never.

In the edit loop, process 1 starts its command again with code that `yard job sync` has put into the pod.

TRAINYARD_CODE names a directory that the pod mounts for this (`yard job submit --dev`). It has

    files/          a copy of the image's working directory: Python files, with the changed ones, and links
    request.json    {"id", "wanted": "stopped" or "started"}; training/remote/code_writer.py writes it
    state.json      {"id", "state": "stopped", "started" or "failed", "time", "message"}; process 1 writes it

A command that fails waits for its next version instead of ending the pod. One that only lost its peers starts
again, because they may be back, or wait themselves. As in all of this package's modules
that the agent uses, Python 3.8 is enough.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from training.run.directory import read_json, write_json

CODE = "TRAINYARD_CODE"
STOPPED, STARTED, FAILED = "stopped", "started", "failed"
WAIT_SECONDS = 1800.0  # how long a failed command waits for another version
MAX_RESTARTS, OPTION = "PET_MAX_RESTARTS", ("--max-restarts", "--max_restarts")  # the option counts, if it is there
EDITS = 1000  # restarts of torchrun for them
AGAIN_SECONDS = 1.0  # before a command starts again that has lost its peers
RESTARTS = "TRAINYARD_RESTARTS"
FIRST_CURABLE = 128  # exit codes below it mean that another attempt fails in the same way (training.run.failure)
BACKOFF_SECONDS, LONGEST_BACKOFF = 5.0, 60.0  # before the second start in place; it doubles
START_SECONDS = 120.0  # how long a stopped one waits until all pods have stopped
TICK = 0.05
DEEPEST = 32  # directories of the image that are linked
MOST = 100_000  # links and copies


class Version(Protocol):
    """One version of a pod's command: `training.pod.supervisor.Pod`."""

    words: list[str]  # of its command
    restarts: int  # of the ranks, by torchrun
    failures: int  # of this version's ranks
    killed: set[int]  # process ids of ranks that made way for another version
    replaced: bool  # by another version, before its own end
    summary: str  # of its end
    followed: bool  # its end only followed another pod's
    refused: bool  # no other start may follow

    def run(self) -> int:
        """Run it; return the exit code."""

    def asked_to_stop(self) -> bool:
        """Return whether the pod was asked to stop."""

    def is_ending(self) -> bool:
        """Return whether the command was told to end after a failure."""

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks that torchrun would start again."""

    def say(self, text: str) -> None:
        """Print a line in the pod's log."""


class Code:
    """The directory with the changed files and the requests."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "files"
        self._request, self._state = directory / "request.json", directory / "state.json"
        self._answered = self._asked()
        limit = os.environ.get(MAX_RESTARTS, "")
        self.failures = int(limit) if limit.isdigit() else 0  # that torchrun may cure by new ranks

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Code | None:
        """Return the directory that TRAINYARD_CODE names, None without it."""
        path = environment.get(CODE)
        return cls(Path(path)) if path and os.path.isdir(path) else None

    def _asked(self) -> tuple[str, str]:
        try:
            found = read_json(self._request)
            return str(found["id"]), str(found["wanted"])
        except (OSError, ValueError, KeyError):
            return "", ""

    def asks_to_stop(self) -> bool:
        """Return whether there is a new request to stop the command."""
        name, wanted = self._asked()
        return wanted == STOPPED and name != self._answered[0]

    def asks_to_start(self) -> bool:
        """Return whether the command that was stopped last may start."""
        name, wanted = self._asked()
        return wanted == STARTED and self._answered == (name, STOPPED)

    def replaces(self, pod: Version) -> bool:
        """Make way for another version if one is there; return whether the whole command has to end.

        Below torchrun, killing the ranks is enough: it starts others, which import the changed files. Each
        time costs one of its restarts, of which it has EDITS more than the job gives it.
        """
        if self.asks_to_start():
            self.answer(STARTED)
        if pod.asked_to_stop() or not self.asks_to_stop():
            return False
        pod.say("another version of the command is here: this one is killed")
        if (
            pod.is_ending()
            or pod.restarts >= self.failures + EDITS
            or any(word.startswith(OPTION) for word in pod.words)
        ):
            return True
        ranks, pod.failures = pod.ranks(), 0
        self._complete()
        pod.killed.update(ranks)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if ranks:
            self.answer(STOPPED)
        return not ranks

    def answer(self, state: str, message: str = "") -> None:
        """Tell that the newest request was met, or that the command failed.

        A request to stop that came while the command started or failed is not met by that, but next.
        """
        asked = self._asked()
        if state == STOPPED or asked[1] != STOPPED or asked[0] == self._answered[0]:
            self._answered = asked
        values = {"id": self._answered[0], "state": state, "time": time.time(), "message": message}
        write_json(self._state, values)

    def wait_to_start(self, pod: Version) -> None:
        """Wait until all pods of the job have stopped their commands, or for START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not pod.asked_to_stop() and not self.asks_to_start():
            time.sleep(TICK)

    def wait_to_stop(self, pod: Version, seconds: float) -> bool:
        """Wait for another version of a command; return whether there is one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not pod.asked_to_stop():
            if self.asks_to_stop():
                return True
            time.sleep(TICK)
        return False

    def changed(self) -> bool:
        """Return whether a file was ever changed in this pod."""
        return self._request.exists()

    def placed(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str], str]:
        """Return a command, its variables and its working directory, with the changed files in front.

        The command starts in `files`, which gets everything of the image's working directory that it lacks.
        Paths of the command and of PYTHONPATH below that directory lead there too.
        """
        here = os.getcwd()
        self.files.mkdir(exist_ok=True)
        self._complete()
        path = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
        moved = [self._moved(one, here) for one in path]
        path = [str(self.files), *(one for one in moved if one not in path), *path]
        changed = {**environment, "PYTHONPATH": os.pathsep.join(path), MAX_RESTARTS: str(self.failures + EDITS)}
        return [self._moved(word, here) for word in words], changed, str(self.files)

    def _complete(self) -> None:
        """Add to `files` what the image's working directory has besides; a changed directory was a link."""
        _link(os.getcwd(), str(self.files), [MOST], 0)

    def _moved(self, word: str, here: str) -> str:
        """Return an absolute path of the image as one below `files`, if it was changed, or has changes."""
        prefix = here.rstrip("/") + "/"
        target = os.path.join(str(self.files), word[len(prefix) :])
        if not word.startswith(prefix) or not os.path.exists(target):
            return word
        changed = os.path.realpath(target).startswith(os.path.realpath(str(self.files)))
        return target if changed else word


def _link(image: str, files: str, left: list[int], depth: int) -> None:
    """Add what a directory of the image has and `files` does not: Python files copied, all else linked.

    Directories in both are looked into.
    """
    try:
        names = os.listdir(image)
    except OSError:
        return
    for name in names:
        if name == "__pycache__":  # what the image compiled may have a changed file's size and second
            continue
        source, target = os.path.join(image, name), os.path.join(files, name)
        if os.path.isdir(target) and not os.path.islink(target):
            if depth < DEEPEST and not os.path.samefile(source, files):
                _link(source, target, left, depth + 1)
        elif not os.path.lexists(target) and left[0]:
            left[0] -= 1
            if name.endswith(".py") and os.path.isfile(source):
                shutil.copyfile(source, target)  # behind a link, Python takes the script's own directory first
            else:
                os.symlink(source, target)


def restarts(environment: Mapping[str, str]) -> int:
    """Return how often a failed command starts again in this pod. Raises ValueError."""
    text = environment.get(RESTARTS) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise ValueError(f"{RESTARTS}={text[:40]!r} is not a whole number")
    return int(text)


def _in_place(make: Callable[[Code | None], Version], left: int) -> int:
    """Run a command, again at most `left` times where another attempt may cure its failure."""
    wait = 0.0
    while True:
        pod = make(None)
        result = pod.run()
        if result < FIRST_CURABLE or not left or pod.refused or pod.asked_to_stop():
            return result
        pod.say(f"starting again in this pod in {wait:.0f} s ({RESTARTS}: {left} left)")
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            time.sleep(TICK)
            if pod.asked_to_stop():
                return result
        left -= 1
        wait = min(max(2 * wait, BACKOFF_SECONDS), LONGEST_BACKOFF)


def run(make: Callable[[Code | None], Version], again: int = 0) -> int:
    """Run a pod's command to its end and return the exit code; in development, run each of its versions.

    A failed command starts again at most `again` times, outside of development.
    """
    code = Code.of(os.environ)
    if code is None:
        return _in_place(make, again)
    healthy = time.monotonic()  # when the command was started or replaced last
    while True:
        pod = make(code)
        result = pod.run()
        if pod.asked_to_stop() or (result == 0 and not pod.replaced):
            return result
        left = healthy + WAIT_SECONDS - time.monotonic()
        if pod.followed and left > 0:
            pod.say("started again, because another pod's end was the cause")
            if not code.wait_to_stop(pod, AGAIN_SECONDS):
                continue
        elif not pod.replaced:
            code.answer(FAILED, pod.summary)
            pod.say(f"waiting {WAIT_SECONDS / 60:.0f} min for another version (yard job sync)")
            if not code.wait_to_stop(pod, WAIT_SECONDS):
                return result
        code.answer(STOPPED)
        code.wait_to_start(pod)
        healthy = time.monotonic()
        if pod.asked_to_stop():
            return result
