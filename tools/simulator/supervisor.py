"""Plays the kubelet for one job on this machine: starts its pods, restarts them, drains them, ends them.

What it does as a cluster would: `restartPolicy` and `backoffLimit`, SIGTERM and then SIGKILL after
terminationGracePeriodSeconds, one log a pod, and the operator's rule of when a job has succeeded.
What it does more kindly: it waits seconds, not minutes, before a restart; it gives up when two attempts of a
pod in a row bring the run no further; and it ends the job at once when a pod's exit code says that a restart
cannot cure its failure (`training.run.failure.CODES`).
"""

import contextlib
import enum
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from tools.core import UserError, processes
from tools.simulator.local_pod import LocalPod
from training.run.directory import RunDir
from training.run.exit_status import exit_in_words
from training.run.failure import CODES, PERMANENT

TICK = 0.2  # seconds between looks at processes
LONGEST_BACKOFF = 8.0
DEFAULT_BACKOFF_LIMIT = 6
ATTEMPTS_WITHOUT_PROGRESS = 2
INSIST_SECONDS = 0.5  # a second Ctrl-C within this time is the first one, forwarded by a wrapper
CHUNK = 65536
PERMANENT_CODES = frozenset(CODES[kind] for kind in PERMANENT)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class End(enum.Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Success(enum.Enum):
    """Whose exit with 0 makes a job succeed (UpdateJobStatus in the operator's pytorchjob_controller.go)."""

    MASTER = "the Master's"
    ANY = "any worker's"
    ALL = "all workers'"


@dataclass(frozen=True)
class Outcome:
    """How a job ended: why it failed (`reason`), whose exit decided it (`pod`), what stopped it (`signal`)."""

    end: End
    reason: str = ""
    pod: str | None = None
    signal: int = 0
    restarts: int = 0
    left: frozenset[int] = frozenset()


@dataclass
class _Running:
    """One pod: its process, the log of both its streams, and the state of its attempts."""

    pod: LocalPod
    log: Path
    relayed: bool
    process: subprocess.Popen[bytes] | None = None
    log_file: IO[bytes] | None = None
    attempts: int = 0
    exit_code: int | None = None
    start_again_at: float | None = None
    without_progress: int = 0
    highest_at_start: int = 0
    partial: bytes = b""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Runs the pods of one job until it succeeds, fails or is stopped. Leaves no process behind."""

    def __init__(
        self,
        pods: Sequence[LocalPod],
        run_directory: Path,
        success: Success,
        backoff_limit: int | None,
        relay: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """Prepare to run `pods`, a Master first. `relay` gets lines of the first one, `note` the events of all."""
        self._directory = run_directory
        self._success = success
        self._limit = DEFAULT_BACKOFF_LIMIT if backoff_limit is None else backoff_limit
        self._relay = relay
        self._note = note
        self._pods = [
            _Running(pod, log_path(run_directory, pod.name), relayed=index == 0) for index, pod in enumerate(pods)
        ]
        self._selector = selectors.DefaultSelector()
        self._stopped_by, self._stopped_at, self._at_once = 0, 0.0, False  # the signal, when, and whether it insists
        self._restarts = 0
        self._highest = 0
        self._not_ours: set[int] = set()

    def run(self) -> Outcome:
        """Start the pods and watch them until they end. Call it in the main thread."""
        processes.adopt_orphans()
        self._not_ours = processes.children_of(os.getpid())
        with self._signals():
            try:
                for running in self._pods:
                    self._start(running)
                outcome = self._watch()
            finally:
                left = self._end_all()
        return replace(outcome, restarts=self._restarts, left=frozenset(left))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def asked(number: int, _frame: object) -> None:
            now = time.monotonic()
            if not self._stopped_by:
                self._stopped_by, self._stopped_at = number, now
            elif number == signal.SIGINT and now - self._stopped_at > INSIST_SECONDS:
                self._at_once = True

        before = {number: signal.signal(number, asked) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():  # after a stop, another signal must not cut the cleanup short
                signal.signal(number, signal.SIG_IGN if self._stopped_by else handler)

    def _start(self, running: _Running) -> None:
        running.attempts += 1
        running.exit_code = running.start_again_at = None
        running.highest_at_start = self._progress()
        running.log.parent.mkdir(parents=True, exist_ok=True)
        running.log_file = running.log.open("ab")
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        header = f"--- attempt {running.attempts} of {running.pod.name}, {stamp}\n"
        running.log_file.write(header.encode())
        running.log_file.flush()
        pod = running.pod
        try:
            process = processes.start(pod.argv, pod.environment, pod.cwd, subprocess.PIPE, subprocess.PIPE)
        except OSError as problem:
            raise UserError(f"pod {pod.name}: {pod.argv[0]} does not start: {problem.strerror}") from None
        running.process = process
        for stream, is_output in ((process.stdout, True), (process.stderr, False)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (running, is_output))

    def _watch(self) -> Outcome:
        while True:
            self._read(TICK)
            if self._stopped_by:
                return self._drain()
            outcome = self._look_at_pods()
            if outcome is not None:
                return outcome

    def _look_at_pods(self) -> Outcome | None:
        for running in self._pods:
            if running.process is not None and running.process.poll() is not None:
                self._ended(running)
                outcome = self._after_exit(running)
                if outcome is not None:
                    return outcome
            elif running.start_again_at is not None and time.monotonic() >= running.start_again_at:
                self._start(running)
        return None

    def _ended(self, running: _Running) -> None:
        """Collect a dead pod's exit code, its leftover processes and the rest of its output."""
        assert running.process is not None
        running.exit_code = running.process.returncode
        processes.kill_tree([], self._orphans())
        self._close(running)

    def _after_exit(self, running: _Running) -> Outcome | None:
        """Return the job's outcome when this pod's exit decides it, or None when the job continues."""
        if running.exit_code == 0:
            return self._finish_others(running) if self._succeeded() else None
        name, code = running.pod.name, exit_in_words(running.exit_code or 0)
        if running.exit_code in PERMANENT_CODES:
            return Outcome(End.FAILED, f"{code}, which a restart cannot cure", name)
        if not _restarts_on(running.pod.restart_policy, running.exit_code or 0):
            return Outcome(End.FAILED, f"{code}, and restartPolicy is {running.pod.restart_policy}", name)
        moved = self._progress() > running.highest_at_start
        running.without_progress = 0 if moved else running.without_progress + 1
        if running.without_progress >= ATTEMPTS_WITHOUT_PROGRESS:
            return Outcome(End.FAILED, f"{code}, twice without a step in between", name)
        if self._restarts >= self._limit:
            return Outcome(End.FAILED, f"{code}, after {self._restarts} restarts (backoffLimit {self._limit})", name)
        self._restarts += 1
        delay = min(2.0 ** (running.attempts - 1), LONGEST_BACKOFF)
        running.start_again_at = time.monotonic() + delay
        self._note(f"pod {name}: {code}; restarting in {delay:.0f} s (restart {self._restarts})")
        return None

    def _succeeded(self) -> bool:
        ended = [running.exit_code == 0 for running in self._pods]
        return {Success.MASTER: ended[0], Success.ANY: any(ended), Success.ALL: all(ended)}[self._success]

    def _finish_others(self, first: _Running) -> Outcome:
        """After success, wait for pods that still run, for at most their grace period."""
        deadline = time.monotonic() + first.pod.grace
        while time.monotonic() < deadline and not self._stopped_by:
            if not any(item.alive for item in self._pods):
                break
            self._read(TICK)
        return Outcome(End.SUCCEEDED, pod=first.pod.name)

    def _drain(self) -> Outcome:
        """Send SIGTERM to every pod; wait until all have ended, the grace period is over or the user insists."""
        self._note(
            f"stopping: the pods save and end, for up to {max(item.pod.grace for item in self._pods)} s"
            " (Ctrl-C again ends them at once)"
        )
        began = time.monotonic()
        for running in self._pods:
            if running.process is not None:
                processes.send_signal(running.process, signal.SIGTERM)
        while not self._at_once:
            waited = time.monotonic() - began
            if not any(item.alive and waited < item.pod.grace for item in self._pods):
                break
            self._read(TICK)
        return Outcome(End.STOPPED, signal=self._stopped_by)

    def _end_all(self) -> set[int]:
        """Kill everything of this job that still runs; return the processes that could not be killed."""
        own = [running.process for running in self._pods if running.process is not None]
        left = processes.kill_tree(own, self._orphans())
        left |= processes.kill_tree([], self._orphans())
        for running in self._pods:
            self._close(running)
        self._selector.close()
        return left

    def _orphans(self) -> set[int]:
        """Return children that are not pods. This process adopted them when their parent in a pod died."""
        pods = {running.process.pid for running in self._pods if running.process is not None}
        return processes.children_of(os.getpid()) - pods - self._not_ours

    def _read(self, seconds: float) -> None:
        """Wait up to `seconds` for output and pass it on."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return
        for key, _ in self._selector.select(seconds):
            running, is_output = key.data
            chunk = os.read(key.fd, CHUNK)
            if chunk:
                self._take(running, chunk, is_output)
            else:
                self._selector.unregister(key.fileobj)

    def _take(self, running: _Running, chunk: bytes, is_output: bool) -> None:
        assert running.log_file is not None
        running.log_file.write(chunk)
        running.log_file.flush()
        if not (running.relayed and is_output):
            return
        *lines, running.partial = (running.partial + chunk).split(b"\n")
        for line in lines:
            self._relay(line.decode(errors="replace"))

    def _close(self, running: _Running) -> None:
        """Read the rest of a dead pod's output and close its log."""
        process = running.process
        if process is None:
            return
        for stream, is_output in ((process.stdout, True), (process.stderr, False)):
            assert stream is not None
            with contextlib.suppress(KeyError):
                self._selector.unregister(stream)
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(stream.fileno(), CHUNK):
                    self._take(running, chunk, is_output)
            stream.close()
        if running.partial and running.relayed:
            self._relay(running.partial.decode(errors="replace"))
        running.partial = b""
        if running.log_file is not None:
            running.log_file.close()
        running.process = None

    def _progress(self) -> int:
        """Return the highest step that the run has reached. A resumed run may start below it."""
        self._highest = max(self._highest, int(RunDir(self._directory).last_record().get("step", 0)))
        return self._highest


def log_path(run_directory: Path, pod_name: str) -> Path:
    """Return the file of a pod's output, all attempts in one."""
    return run_directory / "logs" / f"pod-{pod_name}.log"


def _restarts_on(policy: str, code: int) -> bool:
    """Return whether a pod that failed with `code` restarts. Policy ExitCode treats 1 to 127 as permanent."""
    if policy == "ExitCode":
        return code < 0 or code >= 128
    return policy in ("OnFailure", "Always")
