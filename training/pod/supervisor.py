"""What process 1 of a pod does around the command that it starts.

`training.entrypoint` starts the trainer with it, `training.agent` a user's own script. The agent runs in
images with Python 3.8 and without torch, and so do all modules that are imported here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from training.distributed.process import (
    ENTRYPOINT,
    adopt_orphans,
    children,
    exit_code,
    forked_ranks,
    tied_to,
)  # fmt: skip
from training.pod import end_record, exit_analysis, hang_detector, metrics_server
from training.pod.development import STARTED, Code
from training.pod.end_record import Start
from training.pod.exit_analysis import Death
from training.pod.exposition import Exposition, Here
from training.run import failure, heartbeat
from training.run.directory import RunDir
from training.run.exit_status import exit_in_words
from training.run.failure import CODES, PERMANENT, Failure
from training.run.hang_limits import Limits

LAUNCHER = "training.pod.launcher"  # the module that forks the ranks
TICK = 0.25  # seconds between checks of the child
LOOK = 1.0  # seconds between checks of heartbeats and failure records
LOOK_AGAIN = 5.0  # seconds between two examinations of late ranks
RECORD_SECONDS = 1.0  # time for other ranks to write their records after one recorded a permanent failure
END_SECONDS = 15.0  # from SIGTERM to SIGKILL after a permanent failure
HUNG_SECONDS = 60.0  # time for torchrun to notice that a hung rank was killed; it waits 30 s for the others
VICTIM_SECONDS = 3.0  # how long a pod that only saw consequences waits for the record of their cause
CHUNK = 65536
LONGEST_LINE = 65536  # bytes of a line that are read for its meaning
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as in shells


@dataclass(frozen=True)
class Decision:
    """What follows a failure. `count` is its number in this pod, `refusal` is empty where the ranks start again."""

    count: int
    most: int
    refusal: str


class Retries(Protocol):
    """What decides whether ranks start again: `training.pod.retries`, which the agent does not have."""

    def decide(self, records: Sequence[Failure], *, ended: bool) -> Decision | None:
        """Return what follows a new failure, None without one."""


class Pod:
    """One start of a pod: its command, from the first line of output to the exit code.

    The command gets `environment` in addition to this process's own. Without `run` nothing is recorded, and
    ranks that hang are not detected. With `code` the command is one version of it, which ends when another
    one is there. `retries` decides whether the ranks may start again after a failure.
    """

    name = "entrypoint"  # stands before the lines that this process prints

    def __init__(
        self,
        words: Sequence[str],
        limits: Limits,
        run: RunDir | None,
        environment: Mapping[str, str],
        code: Code | None = None,
        retries: Retries | None = None,
    ) -> None:
        self.replaced = False
        self.refused = False  # by the key `retry`: no new start may follow
        self._retries = retries
        self.summary = ""  # how the command ended
        self.followed = False  # its end only followed another pod's
        self._code_here = code
        self.words = list(words)
        self._environment = environment
        self._run = run
        self._start = Start(
            pod=os.environ.get("HOSTNAME") or socket.gethostname(), id=uuid.uuid4().hex, time=time.time()
        )
        self._detector = hang_detector.HangDetector(run, self._start.id, limits) if run else None
        self._output = exit_analysis.Output()
        self._memory_kills = exit_analysis.memory_kills()
        self._selector = selectors.DefaultSelector()
        self._halves: dict[int, bytes] = {}
        self._stopping: float | None = None  # when it was asked to stop
        self._ending: float | None = None  # when a permanent failure was found
        self._hung: float | None = None  # when a hung rank was killed
        self._look_again = 0.0  # when late ranks, which may only be waiting, are examined again
        self.restarts = self.failures = 0  # of ranks; failures only of this version's, and by themselves
        self.killed: set[int] = set()  # process ids of ranks that made way for another version
        self._code: int | None = None

    def asked_to_stop(self) -> bool:
        """Return whether the pod was asked to stop."""
        return self._stopping is not None

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks that torchrun would start again."""
        return forked_ranks() if LAUNCHER in self.words else []

    def run(self) -> int:
        """Run the launcher to its end; return the pod's exit code."""
        already = end_record.last_end()
        if already is not None and self._code_here is None:
            kind, summary = already
            self.refused = True
            self.say("this pod's last attempt ended the run: no other attempt follows")
            self.say(f"{summary} (exit code {CODES[kind]})")
            return CODES[kind]
        adopt_orphans()
        for number in STOP_SIGNALS:
            signal.signal(number, self._asked_to_stop)
        try:
            self._child = self._launch()
        except OSError as problem:
            self.say(f"cannot start {self.words[0]}: {problem.strerror}")
            return NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_EXECUTABLE
        if self._stopping is not None:  # asked to stop before the child existed
            self._pass_on_stop()
        if self._code_here is not None:
            self._code_here.answer(STARTED)
        with metrics_server.served(metrics_server.address(os.environ), self._metrics(), self.say):
            self._watch()
        self._end_rest()
        return CODES["drained"] if self.replaced else self._conclude()

    def _metrics(self) -> Callable[[], str]:
        """Return what renders this pod's metrics."""
        if self._run is None:
            return str
        shown, host = Exposition(self._run), socket.gethostname()
        number = os.environ.get("RANK") or os.environ.get("JOB_COMPLETION_INDEX") or "0"
        return lambda: shown.text(Here(self._start.pod, host, number == "0", self.restarts))

    def _watch(self) -> None:
        """Read output, wait for children and check them, until the command has ended or makes way for another."""
        looked = 0.0
        while self._code is None:
            self._read(TICK)
            self._reap()
            self.replaced = self._code_here is not None and self._code_here.replaces(self)
            if self.replaced:
                break
            if self._code is None and time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self._look()

    def _launch(self) -> subprocess.Popen[bytes]:
        words, where = self.words, None
        environment = {
            **os.environ,
            **self._environment,
            heartbeat.ATTEMPT: self._start.id,
            heartbeat.STARTED: f"{self._start.time!r} {self._start.clock}",
            ENTRYPOINT: str(os.getpid()),
        }
        if self._code_here is not None:
            words, environment, where = self._code_here.placed(words, environment)
        child = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=where,
            start_new_session=True,
            preexec_fn=tied_to(os.getpid()),
        )
        for stream, target in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, target.fileno())
        return child

    def _asked_to_stop(self, _number: int, _frame: object) -> None:
        """Pass on the first request, as SIGTERM; a second one would cut torchrun's shutdown short."""
        if self._stopping is None:
            self._stopping = time.monotonic()
            self._pass_on_stop()

    def _pass_on_stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.kill(self._child.pid, number)

    def _read(self, seconds: float) -> None:
        """Wait up to `seconds` for output, and pass it on."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return
        for key, _ in self._selector.select(seconds):
            stream = key.fileobj
            assert not isinstance(stream, int)
            try:
                chunk = os.read(key.fd, CHUNK)
            except BlockingIOError:
                continue
            if not chunk:
                self._selector.unregister(stream)
                continue
            _pass_on(key.data, chunk)
            self._take(key.data, chunk)

    def _take(self, target: int, chunk: bytes) -> None:
        *lines, half = (self._halves.get(target, b"") + chunk).split(b"\n")
        for line in lines:
            self._take_line(line)
        *overwritten, half = half.split(b"\r")  # a progress bar
        for part in overwritten:
            self._text_of(part)
        self._halves[target] = half[:LONGEST_LINE]

    def _take_line(self, line: bytes) -> None:
        """Take a whole line; a progress bar has overwritten all but its last part."""
        *overwritten, shown = line[:LONGEST_LINE].rstrip(b"\r").split(b"\r")
        for part in overwritten:
            self._text_of(part)
        death = self._output.take(self._text_of(shown))
        if death is not None:
            self._died(death)

    def _text_of(self, part: bytes) -> str:
        """Return a part of a line as text. It is called once for each part of the output."""
        return part.decode(errors="replace")

    def _reap(self) -> None:
        """Wait for every dead child; keep the launcher's exit code."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child.pid:
                self._code = self._child.returncode = exit_code(status)

    def _look(self) -> None:
        """Check for permanent failures and for ranks that hang; called once a second."""
        now = time.monotonic()
        if self._ending is not None:
            if now - self._ending > END_SECONDS:
                self._signal(signal.SIGKILL)
        elif any(record.kind in PERMANENT for record in self._records()) or self._version_failed() or self._refuses():
            time.sleep(RECORD_SECONDS)
            self._ending = now
            self._signal(signal.SIGTERM)
        else:
            self._guard(now)

    def _version_failed(self) -> bool:
        """Return whether a version of the command failed by itself, or lost its peers too often."""
        if self._code_here is None:
            return False
        own = [one for one in self._records() if one.host == socket.gethostname()]
        itself = any(not failure.is_consequence(one.kind) for one in own)
        return itself or self.failures > self._code_here.failures

    def _refuses(self, *, ended: bool = False) -> bool:
        """Return whether a failure happened after which the ranks must not start again, and say what follows it."""
        if self._retries is None or self.refused or self._stopping is not None:
            return self.refused
        decision = self._retries.decide(self._records(), ended=ended)
        if decision is not None:
            self.refused = bool(decision.refusal)
            follows = f"no other start follows: {decision.refusal}"
            self.say(follows if self.refused else f"start {decision.count} of {decision.most} after a failure")
        return self.refused

    def is_ending(self) -> bool:
        """Return whether the command was told to end after a failure."""
        return self._ending is not None

    def _guard(self, now: float) -> None:
        """Kill ranks that hang, and the launcher if it does not notice."""
        late = self._detector.late() if self._detector else []
        if not late:
            self._hung = None
        elif self._hung is not None:
            if now - self._hung > HUNG_SECONDS:
                self._signal(signal.SIGKILL)
        elif self._detector and now >= self._look_again:
            for record in self._detector.hung(late):
                self._hung = now
                self.say(f"rank {record.rank} hangs: {record.message}; it is killed")
                if not self._has_record(record.pid):  # otherwise it hangs during shutdown
                    self._write(record)
                hang_detector.kill(record.pid)
            self._look_again = now + LOOK_AGAIN

    def _died(self, death: Death) -> None:
        """Record a worker that left no record: it was killed, or failed outside the trainer."""
        self.restarts += 1
        if death.pid in self.killed:
            return
        self.failures += 1
        asked = self._stopping is not None and death.code == -signal.SIGTERM
        if asked or self._has_record(death.pid):
            return
        known = self._detector.rank_of(death.pid) if self._detector else None
        kind, message, exception = self._why_it_died(death)
        self._write(
            Failure(
                kind=kind,
                rank=known.rank if known else death.local_rank,
                host=socket.gethostname(),
                pid=death.pid,
                step=known.step if known else None,
                message=message,
                exception=exception,
                time=time.time(),
                phase=known.phase if known else None,
            )
        )

    def _why_it_died(self, death: Death) -> tuple[str, str, str]:
        """Class, message and exception of a worker's end, from its exit code and the pod's output."""
        how = exit_in_words(death.code)
        if death.code == -signal.SIGKILL:
            if self._killed_for_memory():
                return "out of memory", f"{how} for memory: the container was at its limit", ""
            return "killed", how, ""
        printed = self._output.exception()
        if death.code > 0 and printed is not None:
            text = ": ".join(filter(None, printed))
            return failure.classify_text(text), failure.one_line(text), printed[0]
        if death.code == -signal.SIGABRT:  # NCCL's watchdog ends a process this way
            return failure.classify_text("\n".join(self._output.last())), how, ""
        return "error", how, ""

    def _killed_for_memory(self) -> bool:
        """Whether the kernel has killed for memory since the last call."""
        before, self._memory_kills = self._memory_kills, exit_analysis.memory_kills()
        return (self._memory_kills or 0) > (before or 0)

    def _records(self) -> list[Failure]:
        return failure.since(self._run, self._start.time) if self._run else []

    def _has_record(self, pid: int) -> bool:
        """Whether this pod's process `pid` has left a record."""
        host = socket.gethostname()
        return any((record.pid, record.host) == (pid, host) for record in self._records())

    def _write(self, record: Failure) -> None:
        if self._run:
            with self._told("failure record"):
                failure.write(record, self._run)

    def _end_rest(self) -> None:
        """Read the rest of the output, and kill the processes that the launcher left behind."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline and (left := children()):
            for pid in left:
                hang_detector.kill(pid)
            self._read(0.05)
            self._reap()
        while self._selector.get_map() and self._selector.select(0.0):
            self._read(0.0)
        self._selector.close()

    def _conclude(self) -> int:
        assert self._code is not None
        finished = end_record.conclude(
            self._start,
            self._code,
            self._incident(),
            self._output,
            stopping=self._stopping is not None,
            out_of_memory=self._killed_for_memory(),
        )
        if self._run:
            with self._told("end record"):
                end_record.write(finished, self._run, self.restarts)
        refused = finished.kind != "done" and self._refuses(ended=True)
        end_record.remember(finished, final=refused)
        self.summary, self.followed = finished.summary(), failure.is_consequence(finished.kind)
        if finished.kind != "done":
            self.say(f"{finished.summary()} (exit code {finished.code})")
        return finished.code

    def _incident(self) -> list[Failure]:
        """The records of this pod's end; if all are consequences, wait a moment for their cause."""
        deadline = time.monotonic() + VICTIM_SECONDS
        while self._run and self._code != 0:
            records = failure.incident(self._run, self._start.time)
            told = not records or any(not failure.is_consequence(item.kind) for item in records)
            if told or self._stopping is not None or time.monotonic() > deadline:
                return records
            time.sleep(TICK)
        return []

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as why:
            self.say(f"the {what} was not written: {why}")

    def say(self, text: str) -> None:
        """Print a line in the pod's log."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


def _pass_on(target: int, chunk: bytes) -> None:
    with contextlib.suppress(OSError):  # no reader is left; training continues
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(target, rest) :]
