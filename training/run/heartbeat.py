"""What a rank is doing, in a file of its own: `<run>/heartbeat/rank-00000.json`.

It is written by the code that gets on, never by a clock, so that a rank that hangs falls silent: when the
phase changes and else about once a second, without waiting for the device. A process has one, which `begin`
makes; before that, and in a process that is no rank, the functions below do nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

ATTEMPT = "TRAINYARD_ATTEMPT"  # set by training.entrypoint: the pod's start that a heartbeat belongs to
DUMP_SIGNAL = signal.SIGUSR2  # a rank that beats answers it with the stacks of its threads
INTERVAL = 1.0  # seconds between two writings within a phase
SETTLED = 3  # steps after which a phase is in its stride: compilers and connections are behind it
SHARE = 0.01  # of a rank's time that writing may take: on a slow file system it is written less often

Phase = Literal[
    "joining", "preparing data", "loading", "compiling", "training", "evaluating", "saving", "sampling",
    "uploading", "done",
]  # fmt: skip
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Beat:
    """One heartbeat. `time` is in seconds since the epoch.

    `beats` counts the steps (batches, lines of progress) of this phase so far, `longest_s` is the longest
    time between two signs of life in it after the first. `count` grows with each writing, so that a reader
    sees progress without comparing clocks. `attempt` is empty where no entrypoint started the rank.
    """

    rank: int
    phase: Phase
    step: int | None
    time: float
    host: str
    pid: int
    attempt: str
    beats: int
    longest_s: float
    count: int


class Heartbeat:
    """Writes one rank's heartbeat; with `directory` None it only keeps the phase."""

    def __init__(self, directory: Path | None, rank: int = 0) -> None:
        self._path = None if directory is None else path_of(directory, rank)
        self._stacks = None if directory is None else stacks_of(directory, rank)
        self._rank = rank
        self._phase: Phase = "joining"
        self._step: int | None = None
        self._beats = dict.fromkeys(PHASES, 0)
        self._longest = dict.fromkeys(PHASES, 0.0)
        self._count = 0
        self._last_call = time.monotonic()
        self._written_at = -INTERVAL
        self._cost = 0.0

    @property
    def phase(self) -> Phase:
        """What the rank is doing."""
        return self._phase

    def answer_with_stacks(self) -> None:
        """From now on DUMP_SIGNAL appends the stacks of all threads to this rank's `.stacks` file."""
        if self._stacks is None:
            return
        with contextlib.suppress(OSError):
            self._stacks.parent.mkdir(parents=True, exist_ok=True)
            file = self._stacks.open("ab")  # open for as long as the process lives
            faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Go over to a phase; within it, this is `beat`."""
        if phase == self._phase and self._count:
            self.beat(step)
            return
        self._phase, self._last_call = phase, time.monotonic()
        self._step = self._step if step is None else step
        self._write()

    def beat(self, step: int | None = None, *, part: bool = False) -> None:
        """Say that the rank gets on: a step is done, `step` where they are counted, or only `part` of one."""
        now, phase = time.monotonic(), self._phase
        if self._beats[phase]:
            self._longest[phase] = max(self._longest[phase], now - self._last_call)
        self._beats[phase] += not part
        self._last_call = now
        self._step = self._step if step is None else step
        due = now - self._written_at >= max(INTERVAL, self._cost / SHARE)
        if due or (self._beats[phase] == SETTLED and not part):
            self._write()

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Be in a phase for a while, then back in the one before; an error leaves the phase as it is."""
        before = self._phase
        self.enter(phase)
        yield
        self.enter(before)

    def _write(self) -> None:
        """Write the file whole or not at all. A heartbeat that cannot be written must not end a run."""
        self._count += 1
        self._written_at = time.monotonic()
        if self._path is None:
            return
        beat = Beat(
            self._rank, self._phase, self._step, time.time(), socket.gethostname(), os.getpid(),
            os.environ.get(ATTEMPT, ""), self._beats[self._phase], round(self._longest[self._phase], 3),
            self._count,
        )  # fmt: skip
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(beat)), encoding="utf-8")
            os.replace(temporary, self._path)
        self._cost = time.monotonic() - self._written_at


_own = Heartbeat(None)


def begin(directory: Path, rank: int) -> None:
    """Make this process's heartbeat, in phase joining, and answer DUMP_SIGNAL from now on."""
    global _own
    _own = Heartbeat(directory, rank)
    _own.answer_with_stacks()
    _own.enter("joining")


def enter(phase: Phase, step: int | None = None) -> None:
    """Go over to a phase."""
    _own.enter(phase, step)


def beat(step: int | None = None, *, part: bool = False) -> None:
    """Say that this process gets on, by a step or by part of one."""
    _own.beat(step, part=part)


def during(phase: Phase) -> contextlib.AbstractContextManager[None]:
    """Be in a phase for a while, then back in the one before."""
    return _own.during(phase)


def current() -> Phase:
    """What this process is doing."""
    return _own.phase


def path_of(directory: Path, rank: int) -> Path:
    """Return where a rank's heartbeat is."""
    return directory / f"rank-{rank:05d}.json"


def stacks_of(directory: Path, rank: int) -> Path:
    """Return where a rank's stacks go when it is asked for them."""
    return directory / f"rank-{rank:05d}.stacks"


def read(path: Path) -> Beat | None:
    """Return a heartbeat, or None for one that is missing or cannot be read."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Beat(**{name: saved[name] for name in Beat.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError):
        return None
