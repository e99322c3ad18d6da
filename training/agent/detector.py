"""Finds ranks of a user's script that hang: by their heartbeats, or by the steps in the script's output."""

from __future__ import annotations

import socket
import time

from training.agent.output_progress import OutputProgress
from training.agent.ranks import own_rank, ranks_below
from training.distributed.process import state_of
from training.pod.hang_detector import STUCK, HangDetector, Late, record_of
from training.run.directory import RunDir
from training.run.failure import Failure
from training.run.hang_limits import Limits
from training.run.heartbeat import Beat

_RESCAN = 5.0  # seconds between two searches for the processes of ranks


class ScriptDetector(HangDetector):
    """As the trainer's, where the script calls `trainyard.report`; else the steps in its output decide.

    The output is that of the whole pod: if no new step appears in it, all ranks are late. Before the first
    step there is no sign of progress, and no rank is late.
    """

    def __init__(self, run: RunDir, attempt: str, limits: Limits, progress: OutputProgress) -> None:
        super().__init__(run, attempt, limits)
        self._progress = progress
        self._pids: dict[int, int] = {}
        self._looked = 0.0
        self.launcher = 0  # process id of the command

    @property
    def reported(self) -> bool:
        """Whether a rank of this start reports its steps itself."""
        return bool(self.ranks())

    def first_rank_is_here(self) -> bool:
        """Whether rank 0 runs in this pod; where no rank is known, the pod's own number decides."""
        if not self._pids:
            self._looked = 0.0
        self._look()
        return 0 in self._pids if self._pids else own_rank() == 0

    @property
    def lowest_rank(self) -> int:
        """The lowest rank of this pod, as far as it is known."""
        return min(self._pids, default=own_rank())

    def rank_of(self, pid: int) -> Beat | None:
        """The last heartbeat of one of this pod's processes, or what is known without one."""
        known = super().rank_of(pid)
        if known is not None:
            return known
        return next((self._beat(rank, own) for rank, own in self._pids.items() if own == pid), None)

    def late(self) -> list[Late]:
        """The ranks without progress for longer than their limit."""
        if self.reported:
            return super().late()
        found = self._progress.late()
        if found is not None:
            self._looked = 0.0  # the processes of this moment decide which rank is named
        self._look()
        if found is None:
            return []
        pids = self._pids or {own_rank(): self.launcher}
        return [Late(self._beat(rank, pid), *found) for rank, pid in sorted(pids.items())]

    def hung(self, late: list[Late]) -> list[Failure]:
        """Failure records of the ranks that hold up the others.

        Without heartbeats these are the ranks whose processes are stuck, or else all.
        """
        if self.reported:
            return super().hung(late)
        reasons = [STUCK.get(state_of(item.beat.pid) or "") for item in late]
        if not any(reasons):
            reasons = ["the output shows no new step"] * len(late)
        self._progress.forget()
        return [record_of(item, reason, "") for item, reason in zip(late, reasons) if reason]

    def _look(self) -> None:
        if time.monotonic() - self._looked > _RESCAN:
            self._looked = time.monotonic()
            self._pids = ranks_below(self.launcher) or self._pids

    def _beat(self, rank: int, pid: int) -> Beat:
        progress = self._progress
        return Beat(
            rank, "training", progress.step, time.time(), socket.gethostname(), pid, self._attempt,
            progress.count, progress.longest, progress.count,
        )  # fmt: skip
