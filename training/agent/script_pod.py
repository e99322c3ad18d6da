"""One start of a user's script: process 1 of its pod, which reads what the script prints and reports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence

from training.agent import metrics_file
from training.agent.detector import ScriptDetector
from training.agent.forking import is_torchrun
from training.agent.mask import Mask
from training.agent.output_progress import OutputProgress
from training.agent.ranks import ranks_below
from training.pod.development import Code
from training.pod.supervisor import TICK, Pod
from training.run.directory import RunDir
from training.run.failure import CODES, Failure
from training.run.hang_limits import Limits

DRAIN_FILE = "TRAINYARD_DRAIN_FILE"  # the file that exists once the pod was asked to stop


class ScriptPod(Pod):
    """As the trainer's pod, and besides: metrics and hangs by the output, a file that says to stop."""

    name = "agent"

    def __init__(
        self,
        words: Sequence[str],
        limits: Limits,
        run: RunDir | None,
        environment: Mapping[str, str],
        code: Code | None = None,
    ) -> None:
        super().__init__(words, limits, run, environment, code)
        self._mask = Mask(os.environ)
        self._progress = OutputProgress(limits)
        self._reads = True
        self._limits = limits
        self._silence_told = not limits.step
        self._begun = time.monotonic()
        self._script: ScriptDetector | None = None
        self._drain_file = None
        if run is not None:
            self._drain_file = run.path / f"drain-{self._start.id}"
            self._environment = {**environment, DRAIN_FILE: str(self._drain_file)}
            self._detector = self._script = ScriptDetector(run, self._start.id, limits, self._progress)

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks that torchrun would start again."""
        return list(ranks_below(self._child.pid).values()) if is_torchrun(self.words) else []

    def _pass_on_stop(self) -> None:
        """Create the file, then send SIGTERM to the command's process group: a shell does not pass it on."""
        if self._drain_file is not None:
            with contextlib.suppress(OSError):
                self._drain_file.touch()
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.killpg(self._child.pid, signal.SIGTERM)

    def _end_rest(self) -> None:
        """After a request to stop, wait for the whole process group: a shell ends before the script that saves.

        The grace period of the pod bounds the wait.
        """
        while self._stopping is not None and self._group_lives():
            self._read(TICK)
            self._reap()
        super()._end_rest()

    def _group_lives(self) -> bool:
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _text_of(self, part: bytes) -> str:
        text = self._mask(super()._text_of(part))
        if self._reads:
            try:
                self._progress.take(text)
            except Exception as problem:  # noqa: BLE001 - no fault in reading a line may end the training
                self._reads = False
                self.say(f"the output is no longer read for steps: {type(problem).__name__}: {problem}")
        return text

    def _look(self) -> None:
        if self._script is not None:
            self._script.launcher = self._child.pid
        super()._look()
        self._write_metrics()
        if not self._silence_told and time.monotonic() - self._begun > self._limits.step:
            self._silence_told = True
            if self._progress.step is None and not (self._script and self._script.reported):
                self.say("no step was seen yet in the output, so a hang cannot be detected")

    def _write_metrics(self, *, all_of_them: bool = False) -> None:
        """Write the steps in the output, in the pod of rank 0, unless the script writes its own."""
        records = self._progress.records(all_of_them=all_of_them)
        if self._run is None or self._script is None or not records:
            return
        if not self._script.reported and self._script.first_rank_is_here():
            with self._told("metrics file"):
                metrics_file.append(self._run.metrics, records)

    def _conclude(self) -> int:
        """As for the trainer. A script that was asked to stop has not finished, even if it exits with 0."""
        self._write_metrics(all_of_them=True)
        if self._stopping is not None:
            self._write(self._drained())
            self._code = self._code or CODES["drained"]
        if self._drain_file is not None:
            with contextlib.suppress(OSError):
                self._drain_file.unlink()
        return super()._conclude()

    def _drained(self) -> Failure:
        beats = self._script.ranks() if self._script else []
        step = beats[0].step if beats else self._progress.step
        known = self._script.lowest_rank if self._script else 0
        return Failure(
            kind="drained",
            rank=beats[0].rank if beats else known,
            host=socket.gethostname(),
            pid=self._child.pid,
            step=step,
            message="stopped on request" + ("" if step is None else f" after step {step}"),
            exception="",
            time=time.time(),
        )
