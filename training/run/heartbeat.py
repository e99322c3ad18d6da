"""What a rank is doing, in its own file: `<run>/heartbeat/rank-00000.json`.

The working code writes it, never a timer, so a rank that hangs falls silent. It is written when the phase
changes and about once a second otherwise, without waiting for the device. Each change of the phase is also a
line of `<run>/heartbeat/rank-00000.phases.jsonl`, which `training.run.phases` reads. A process has one heartbeat,
which `begin` creates. Before that, and in a process that is not a rank, the functions below do nothing.
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

from training.run import clock
from training.run.directory import read_json
from training.run.files import unlinked

ATTEMPT = "TRAINYARD_ATTEMPT"  # set by training.entrypoint: the pod's start that a heartbeat belongs to
STARTED = "TRAINYARD_STARTED"  # set beside it: when that start began, in seconds since the epoch, and the clock
NODE = "TRAINYARD_NODE"  # set by the manifest: the name of the pod's node
DUMP_SIGNAL = signal.SIGUSR2  # a rank answers it with the stacks of its threads
INTERVAL = 1.0  # seconds between two writes within a phase
SETTLED = 3  # steps after which a phase runs steadily: it has compiled its code and opened its connections
SHARE = 0.01  # upper limit of a rank's time spent writing: a slow file system gets fewer writes

Phase = Literal[
    "joining", "preparing data", "loading", "compiling", "training", "evaluating", "saving", "sampling",
    "uploading", "done",
]  # fmt: skip
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Beat:
    """One heartbeat. `time` is in seconds since the epoch.

    `beats` counts the steps (batches, lines of progress) of this phase so far; `longest_s` is the longest
    time between two of them. `count` grows with each write, so that a reader sees progress without comparing
    clocks. `attempt` is empty if no entrypoint started the rank. `own_s` and `wait_s` are the means of the last steps:
    seconds of this rank's own work, and of waiting for others. `node` is empty if the manifest does not tell it.
    `clock` is what `training.run.clock` tells.
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
    own_s: float | None = None
    wait_s: float | None = None
    node: str = ""
    clock: str = ""


class Heartbeat:
    """Writes one rank's heartbeat; if `directory` is None, or a link, it only keeps the phase."""

    def __init__(self, directory: Path | None, rank: int = 0) -> None:
        directory = None if directory is not None and directory.is_symlink() else directory
        self._path = None if directory is None else path_of(directory, rank)
        self._stacks = None if directory is None else stacks_of(directory, rank)
        self._changes = None if directory is None else changes_of(directory, rank)
        self._rank = rank
        self._phase: Phase = "joining"
        self._step: int | None = None
        self._beats = dict.fromkeys(PHASES, 0)
        self._longest = dict.fromkeys(PHASES, 0.0)
        self._count = 0
        self._last_call = time.monotonic()
        self._written_at = -INTERVAL
        self._cost = 0.0
        self._times: tuple[float, float] | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    def answer_with_stacks(self) -> None:
        """Make DUMP_SIGNAL append the stacks of all threads to this rank's `.stacks` file."""
        if self._stacks is None:
            return
        with contextlib.suppress(OSError):
            self._stacks.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._stacks, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)  # open for as long as the process lives

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Change to a phase; within the same phase this is `beat`."""
        if phase == self._phase and self._count:
            self.beat(step)
            return
        self._phase, self._last_call = phase, time.monotonic()
        self._step = self._step if step is None else step
        self._write()
        self._note(time.time(), self._phase, self._step, os.environ.get(ATTEMPT, ""), clock.told())

    def continue_record(self) -> None:
        """Add lines for what this process cannot see: the last sign of the rank's process before, and its pod's start.

        It is called before the first `enter`, which replaces the heartbeat of the process before.
        """
        before = None if self._path is None else read(self._path)
        if before is not None:
            self._note(before.time, before.phase, before.step, before.attempt, before.clock)
        own = os.environ.get(ATTEMPT, "")
        if own and (before is None or before.attempt != own):
            with contextlib.suppress(KeyError, ValueError):
                began, seen = os.environ[STARTED].split()
                self._note(float(began), "joining", None, own, seen)

    def beat(self, step: int | None = None, *, part: bool = False) -> None:
        """Report progress: a step is done (`step` is its number, if they have one), or only `part` of one."""
        now, phase = time.monotonic(), self._phase
        if self._beats[phase]:
            self._longest[phase] = max(self._longest[phase], now - self._last_call)
        self._beats[phase] += not part
        self._last_call = now
        self._step = self._step if step is None else step
        due = now - self._written_at >= max(INTERVAL, self._cost / SHARE)
        if due or (self._beats[phase] == SETTLED and not part):
            self._write()

    def measured(self, own_s: float, wait_s: float) -> None:
        """Take the seconds of own work and of waiting, for the next write."""
        self._times = (round(own_s, 6), round(wait_s, 6))

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Be in a phase for a while, then return to the previous one; an error leaves the phase as it is."""
        before = self._phase
        self.enter(phase)
        yield
        self.enter(before)

    def _note(self, moment: float, phase: str, step: int | None, attempt: str, seen: str) -> None:
        """Add a line about a phase; one that cannot be written must not end a run."""
        if self._changes is None:
            return
        line = {"time": moment, "phase": phase, "step": step, "attempt": attempt, "clock": seen}
        with contextlib.suppress(OSError):
            self._changes.parent.mkdir(parents=True, exist_ok=True)
            with open(self._changes, "ab", opener=unlinked) as file:
                file.write((json.dumps(line) + "\n").encode())

    def _write(self) -> None:
        """Write the file atomically. A heartbeat that cannot be written must not end a run."""
        self._count += 1
        self._written_at = time.monotonic()
        if self._path is None:
            return
        own_s, wait_s = self._times or (None, None)
        beat = Beat(
            self._rank, self._phase, self._step, time.time(), socket.gethostname(), os.getpid(),
            os.environ.get(ATTEMPT, ""), self._beats[self._phase], round(self._longest[self._phase], 3),
            self._count, own_s, wait_s, os.environ.get(NODE, ""), clock.told(),
        )  # fmt: skip
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "w", encoding="utf-8", opener=unlinked) as file:
                file.write(json.dumps(asdict(beat)))
            os.replace(temporary, self._path)
        self._cost = time.monotonic() - self._written_at


_own = Heartbeat(None)


def begin(directory: Path, rank: int) -> None:
    """Create this process's heartbeat, in phase joining, and answer DUMP_SIGNAL from now on."""
    global _own
    _own = Heartbeat(directory, rank)
    _own.answer_with_stacks()
    _own.continue_record()
    _own.enter("joining")


def enter(phase: Phase, step: int | None = None) -> None:
    """As `Heartbeat.enter`, for this process."""
    _own.enter(phase, step)


def beat(step: int | None = None, *, part: bool = False) -> None:
    """As `Heartbeat.beat`, for this process."""
    _own.beat(step, part=part)


def measured(own_s: float, wait_s: float) -> None:
    """As `Heartbeat.measured`, for this process."""
    _own.measured(own_s, wait_s)


def during(phase: Phase) -> contextlib.AbstractContextManager[None]:
    """As `Heartbeat.during`, for this process."""
    return _own.during(phase)


def current() -> Phase:
    """This process's phase."""
    return _own.phase


def path_of(directory: Path, rank: int) -> Path:
    """Path of a rank's heartbeat."""
    return directory / f"rank-{rank:05d}.json"


def changes_of(directory: Path, rank: int) -> Path:
    """Path of the file with a line for each change of a rank's phase."""
    return directory / f"rank-{rank:05d}.phases.jsonl"


def stacks_of(directory: Path, rank: int) -> Path:
    """Path of the file that a rank writes its stacks to."""
    return directory / f"rank-{rank:05d}.stacks"


def read(path: Path) -> Beat | None:
    """Read a heartbeat; None if it is missing or incomplete, or if its directory is a link."""
    if path.parent.is_symlink():
        return None
    try:
        saved = read_json(path)
        beat = Beat(**{name: saved[name] for name in Beat.__dataclass_fields__ if name in saved})
        return beat if _is_sound(beat) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_sound(beat: Beat) -> bool:
    """Whether every value has its type and is finite: others than the rank can write to a shared volume."""
    numbers = (beat.rank, beat.step or 0, beat.pid, beat.beats, beat.count, beat.time, beat.longest_s,
               beat.own_s or 0.0, beat.wait_s or 0.0)  # fmt: skip
    texts = (beat.phase, beat.host, beat.attempt, beat.node, beat.clock)
    return (
        all(type(number) in (int, float) and abs(number) < 2**63 for number in numbers)
        and beat.pid > 1
        and all(type(number) is int for number in numbers[:5])
        and all(type(text) is str for text in texts)
        and beat.phase in PHASES
    )
