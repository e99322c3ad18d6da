"""When a checkpoint is committed: between two steps, or beside the steps that follow."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from training.checkpoint.errors import CheckpointError
from training.checkpoint.tiers import Tiers
from training.checkpoint.write import Snapshot
from training.run import heartbeat
from training.trainer import state
from training.trainer.state import TrainState

log = logging.getLogger("trainyard")


class Saver:
    """Commits a run's checkpoints; all ranks call each method at the same step.

    With `beside` a save copies the state to the host before the next step, and a thread writes, hashes and
    commits the copy during the next steps. `tiers` then need a process group of their own. At most one save is in
    flight. A process that ends before the commit leaves the earlier checkpoints as they are. If there is no memory
    for the copy, training waits for the save.
    """

    def __init__(self, tiers: Tiers, meta: dict[str, Any], *, beside: bool) -> None:
        self._tiers, self._meta, self._beside = tiers, meta, beside
        self._thread: threading.Thread | None = None

    def save(self, now: TrainState, *, must: bool) -> None:
        """Commit a checkpoint of this step, or begin to. A failure is a warning.

        With `must` the commit has happened when this returns. What an earlier save has committed of this same state
        is not written again.

        Raises:
            CheckpointError: a commit that must happen failed.
        """
        started = time.perf_counter()
        with heartbeat.during("saving"):
            self.finish()
            free = time.perf_counter()
            copied = self._copy(now) if self._beside and not must else None
            if copied is not None:
                thread = threading.Thread(target=self._commit, args=(copied, started), daemon=True)
                thread.start()
                self._thread = thread
                earlier = f"{free - started:.1f} s for the save before it and " if free - started >= 0.1 else ""
                copying = time.perf_counter() - free
                log.info("step %d waited %s%.1f s for the copy of its state", now.step, earlier, copying)
                return
            try:
                written = self._tiers.save(state.collect(now, self._meta), must=must)
            except CheckpointError as error:
                if must:
                    raise
                _warn(now.step, error)
                return
        if written:
            _said(now.step, started)

    def finish(self, most: float | None = None) -> None:
        """Wait for the save in flight, if there is one; at most so many seconds."""
        if self._thread is not None:
            with heartbeat.during("saving"):
                self._thread.join(most)
            if not self._thread.is_alive():
                self._thread = None

    def _copy(self, now: TrainState) -> Snapshot | None:
        """A copy of the state; None on every rank if one has no memory for it, and then training waits for the save."""
        copied = None
        try:
            copied = state.on_host(state.collect(now, self._meta), now.device)
        except (MemoryError, RuntimeError) as error:  # torch has no error of its own for the host's memory
            log.warning("step %d: training waits for the save, because its state was not copied: %s", now.step, error)
        return None if self._tiers.store.peers.any(copied is None) else copied

    def _commit(self, copied: Snapshot, started: float) -> None:
        try:
            written = self._tiers.save(copied, must=False)
        except Exception as error:  # noqa: BLE001 - whatever ends a thread must not be silent
            _warn(copied.step, error)
            return
        if written:
            _said(copied.step, started)


def _said(step: int, started: float) -> None:
    log.info("checkpoint of step %d saved in %.1f s", step, time.perf_counter() - started)


def _warn(step: int, error: Exception) -> None:
    log.warning("checkpoint of step %d was not saved, training continues: %s", step, error)
