"""Finds the rank of this pod that hangs and holds up the others, from the ranks' heartbeats.

When one rank hangs, all of them fall silent, because the others wait for it. Process state and stack tell
which one it is: it is stopped, stuck in the kernel, or not waiting inside a collective.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from training.distributed.process import is_descendant, state_of
from training.run import heartbeat
from training.run.directory import RunDir
from training.run.failure import Failure
from training.run.files import open_regular
from training.run.hang_limits import Limits
from training.run.heartbeat import Beat

WAITING = 1.5  # a rank that only waits for others gets this many times its limit: the cause is found first
AFTER_DEATH = 60.0  # seconds without a check after a rank died: the launcher ends and restarts the others
STUCK = {
    **dict.fromkeys("Tt", "its process is stopped"),
    "D": "its process is stuck in the kernel, in file system, network or driver",
}  # states of a process that cannot continue by itself
_ANSWER = 2.0  # seconds that a rank has to write its stacks
_RESCAN = 5.0  # seconds between two searches for new ranks
_LONGEST_STACKS = 1 << 20  # bytes
# Stack frames of a thread that only waits, for other ranks or for the device. A test holds the trainer's own
# paths against its modules.
_WAITS = re.compile(
    r"/torch/distributed/|/torch/autograd/graph\.py, line \d{1,9} in _engine_run_backward|"
    r"/torch/cuda/[a-z_]{1,40}\.py, line \d{1,9} in synchronize|"
    r"/training/(?:trainer/metrics\.py|device)|/training/trainer/loop\.py, line \d{1,9} in evaluate"
)


@dataclass(frozen=True)
class Late:
    """A rank of this pod that has been silent for too long."""

    beat: Beat
    silent: float
    limit: float


@dataclass
class _Seen:
    count: int
    at: float


class HangDetector:
    """Checks the ranks that belong to this pod's start `attempt`."""

    def __init__(self, run: RunDir, attempt: str, limits: Limits) -> None:
        self._directory, self._attempt, self._limits = run.heartbeat, attempt, limits
        self._known: set[Path] = set()
        self._seen: dict[int, _Seen] = {}
        self._dead: dict[int, float] = {}
        self._scanned = 0.0

    def ranks(self) -> list[Beat]:
        """The newest heartbeat of each of this pod's ranks; of a rank that died, its last one."""
        own = self._own(self._known)
        if len(own) < len(self._known) or not own or time.monotonic() - self._scanned > _RESCAN:
            self._scanned = time.monotonic()
            own = self._own(set(self._directory.glob("rank-*.json")))
            self._known = {heartbeat.path_of(self._directory, beat.rank) for beat in own}
        return own

    def rank_of(self, pid: int) -> Beat | None:
        """The last heartbeat of one of this pod's processes."""
        return next((beat for beat in self.ranks() if beat.pid == pid), None)

    def late(self) -> list[Late]:
        """The living ranks that have been silent for longer than their phase allows.

        Empty for AFTER_DEATH seconds after a rank died, while the launcher ends the others.
        """
        if not self._limits.step:
            return []
        now, found = time.monotonic(), []
        for beat in self.ranks():
            if state_of(beat.pid) in (None, "Z"):
                self._dead.setdefault(beat.pid, now)
                continue
            seen = self._seen.get(beat.pid)
            if seen is None or seen.count != beat.count:
                self._seen[beat.pid] = _Seen(beat.count, now)
                continue
            limit = self._limits.for_(beat)
            if now - seen.at > limit:
                found.append(Late(beat, now - seen.at, limit))
        return [] if any(now - died < AFTER_DEATH for died in self._dead.values()) else found

    def hung(self, late: list[Late]) -> list[Failure]:
        """Failure records of the late ranks that hold up the others; empty while that is unclear."""
        return self.evaluate(late, _stacks(self._directory, [item.beat for item in late]))

    def evaluate(self, late: list[Late], stacks: Mapping[int, str]) -> list[Failure]:
        """As `hung`, given the stacks of each late rank's threads.

        If all of them only wait, for a rank of another pod or in a collective that never ends, the rank that
        is furthest behind is named after WAITING times its limit.
        """
        records = []
        for item in late:
            reason = _reason(item.beat, stacks[item.beat.rank])
            if reason is not None:
                records.append(record_of(item, reason, stacks[item.beat.rank]))
        if records:
            return records
        overdue = [item for item in late if item.silent > WAITING * item.limit]
        if not overdue:
            return []
        last = min(overdue, key=lambda item: (item.beat.step or 0, -item.silent, item.beat.rank))
        return [record_of(last, "it and all others here wait for each other", stacks[last.beat.rank])]

    def _own(self, paths: set[Path]) -> list[Beat]:
        beats = (heartbeat.read(path) for path in sorted(paths))
        return [beat for beat in beats if beat is not None and beat.attempt == self._attempt]


def kill(pid: int) -> None:
    """Kill a rank that no longer reacts. Its heartbeat names it, so that only own processes are killed."""
    if is_descendant(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _stacks(directory: Path, beats: list[Beat]) -> dict[int, str]:
    """Ask ranks for the stacks of their threads; the text is empty for a rank that does not answer."""
    files = {beat.rank: heartbeat.stacks_of(directory, beat.rank) for beat in beats}
    before = {rank: _size(file) for rank, file in files.items()}
    for beat in beats:
        # Without a file there is no handler, and the signal would kill the process.
        if before[beat.rank] is not None and is_descendant(beat.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat.pid, heartbeat.DUMP_SIGNAL)
    deadline = time.monotonic() + _ANSWER
    while time.monotonic() < deadline:
        time.sleep(0.1)
        sizes = {rank: _size(file) for rank, file in files.items()}
        if all((sizes[rank] or 0) > (before[rank] or 0) for rank in files):
            time.sleep(0.1)  # the rest of the last one
            break
    return {rank: _text_from(file, before[rank] or 0) for rank, file in files.items()}


def _reason(beat: Beat, stacks: str) -> str | None:
    """Why this rank hangs, or None if it seems to wait for others."""
    state = state_of(beat.pid)
    if state in STUCK:
        return STUCK[state]
    frames = _main_frames(stacks)
    if not frames:
        return "it does not answer" if state is not None else None
    if any(_WAITS.search(frame) for frame in frames[:2]):
        return None
    return f"it is in {frames[0]}"


def _main_frames(stacks: str) -> list[str]:
    """The frames of the main thread, innermost first, as `/path/file.py, line 3 in name`."""
    threads = re.split(r"(?m)^(?:Current thread|Thread) .*$", stacks)
    frames = [line.strip() for line in threads[-1].splitlines() if "File " in line]
    return [re.sub(r'^(?:File )?"([^"]+)"', r"\1", frame) for frame in frames]


def record_of(late: Late, reason: str, stacks: str) -> Failure:
    """The failure record of a late rank that hangs for this reason."""
    beat = late.beat
    where = beat.phase if beat.step is None else f"{beat.phase} after step {beat.step}"
    return Failure(
        kind="hang",
        rank=beat.rank,
        host=beat.host,
        pid=beat.pid,
        step=beat.step,
        message=f"no progress for {late.silent:.0f} s in {where} (limit {late.limit:.0f} s): {reason}",
        exception="",
        time=time.time(),
        phase=beat.phase,
        traceback=stacks,
    )


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _text_from(file: Path, start: int) -> str:
    try:
        with open_regular(file) as stream:
            stream.seek(start)
            return (stream.read(_LONGEST_STACKS) or b"").decode(errors="replace")
    except OSError:
        return ""
