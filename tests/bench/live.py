"""A side's processes: started, stopped while another side trains, continued and ended."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.bench.sides import Side

ROOT = Path(__file__).resolve().parents[2]
_POLL = 0.05  # seconds between two looks at a side
_STEP, _EVALUATION = b'"tokens":', b'"evaluated":'  # of the lines that end one


class SideError(Exception):
    """A side ended with an error. The message says which, and how its output ends."""


class Live:
    """A side that trains in processes of its own, below torchrun or not."""

    def __init__(
        self, side: Side, run: Path, log: Path, commands: list[list[str]], environment: Mapping[str, str]
    ) -> None:
        self.side, self.run, self.log = side, run, log
        self.started = time.time()
        self._pauses: list[tuple[float, float]] = []
        self._paused_at: float | None = None
        self._marks, self._sizes = 0, list[int]()
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for words in commands:
                self._processes.append(self._begin(words, environment))
        except BaseException:
            self.end()
            raise

    def _begin(self, words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("a") as file:
            return subprocess.Popen(
                words, stdout=file, stderr=file, env=dict(environment), cwd=ROOT, start_new_session=True
            )

    def ended(self) -> bool:
        """Return whether all its processes have ended, or it has all the steps that count.

        Raises:
            SideError: a process failed.
        """
        codes = [process.poll() for process in self._processes]
        if code := next(filter(None, codes), 0):
            raise SideError(f"{self.side.name}: ended with {code}: {end_of(self.log.read_text(errors='replace'))}")
        return None not in codes or bool(self.side.ends and self.marks() >= self.side.ends)

    def train(self, steps: int, end: float) -> None:
        """Wait until it has made `steps` more steps or evaluations, or has ended. 0 steps: until it has ended.

        Raises:
            SideError: it failed, or is not done at `end`, a time of the monotonic clock.
        """
        wanted = self.marks() + steps
        while not self.ended() and not (steps and self.marks() >= wanted):
            if time.monotonic() > end:
                raise SideError(f"{self.side.name}: not done in {time.time() - self.started:.0f} s")
            time.sleep(_POLL)

    def marks(self) -> int:
        """Return how many evaluations it has made, of a side without any how many steps."""
        paths = (self.run / "metrics.jsonl", self.run / "probe.jsonl")
        sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
        if sizes != self._sizes:
            self._sizes = sizes
            text = b"".join(path.read_bytes() for path in paths if path.exists())
            self._marks = text.count(_EVALUATION) or text.count(_STEP)
        return self._marks

    def pause(self) -> None:
        """Stop its ranks. torchrun itself continues, because it would take a long pause for a lost node."""
        self._paused_at = time.time()
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let its ranks continue."""
        if self._paused_at is not None:
            self._pauses.append((self._paused_at, time.time()))
            self._paused_at = None
            self._signal(signal.SIGCONT)

    def paused(self, start: float, end: float) -> bool:
        """Return whether it was stopped within a time."""
        return any(begin < end and until > start for begin, until in self._pauses)

    def end(self) -> None:
        """End its processes and all below them: torchrun's ranks are in sessions of their own."""
        for process in self._processes:
            if process.poll() is None:
                below = psutil.Process(process.pid).children(recursive=True)
                for one in (process, *below):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                process.wait()
                psutil.wait_procs(below, timeout=30)

    def _signal(self, number: int) -> None:
        for process in self._ranks():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _ranks(self) -> Iterator[psutil.Process]:
        with_torchrun = self.side.how in ("ours", "probed")
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one = psutil.Process(process.pid)
                yield from ([] if with_torchrun else [one])
                yield from one.children(recursive=True)


def end_of(text: str) -> str:
    """Return the end of what a side has printed."""
    return text.strip()[-1500:]
