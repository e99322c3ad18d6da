"""The places of a run's checkpoints together: which step goes where, and which place gives the newest one.

The shared volume has the store's checkpoints. Nodes are nearer and a bucket is farther: both are optional. A step
goes to the nodes first, then to the volume, and from there to the bucket, beside the steps that follow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from training.checkpoint import copy
from training.checkpoint.attempt import Log
from training.checkpoint.errors import CheckpointError
from training.checkpoint.keep import Rules, superseded
from training.checkpoint.layout import step_name
from training.checkpoint.node import Nodes, Spread
from training.checkpoint.peers import Peers
from training.checkpoint.read import Checkpoint
from training.checkpoint.s3 import Bucket
from training.checkpoint.store import Store
from training.checkpoint.tier import Tier
from training.checkpoint.verify import share_of
from training.checkpoint.write import Snapshot

Check = Callable[[Checkpoint], None]


class Remote:
    """Copies of the volume's steps in a bucket, made by all ranks together in a thread of each.

    `peers` have a process group of their own, and `every` counts steps. At most one copy is in flight; a step that
    is due meanwhile is left out.
    """

    def __init__(
        self, bucket: Bucket, store: Store, peers: Peers, *, every: int, keep: Rules, log: Log, say: Log
    ) -> None:
        self.bucket, self.every = bucket, every
        self._store, self._peers, self._keep, self._log, self._say = store, peers, keep, log, say
        self._thread: threading.Thread | None = None

    def start(self, step: int, *, wait: bool) -> None:
        """Begin to copy a step that the volume has; with `wait` it is there when this returns, or is reported."""
        if wait:
            self.finish()
        busy = self._thread is not None and self._thread.is_alive()
        if self._store.peers.any(busy):
            if self._peers.rank == 0:
                self._log(f"step {step} is not copied to {self.bucket.place}: the copy before it is still running")
            return
        self.finish()
        self._store.held.add(step)
        self._thread = threading.Thread(target=self._copy, args=(step,), daemon=True)
        self._thread.start()
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the copy in flight, if there is one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def end(self) -> None:
        """Give up the copy in flight, if there is one: the run stops here and now."""
        self.bucket.end()
        self.finish()

    def fetch(self, step: int) -> None:
        """Copy a step from the bucket to the volume. Raises CheckpointError on every rank."""
        together(self._store.peers, self.bucket, self._store.tier, step)

    def newer_than(self, step: int) -> list[int]:
        """Steps of the bucket above `step`, newest first, on every rank; empty if it does not answer."""

        def ask(_: list[Any]) -> list[int]:
            found = []
            for each in self.bucket.newest_first():
                if each <= step:
                    break
                found.append(each)
            return found

        try:
            steps: list[int] = self._store.peers.agree(lambda: None, ask)
        except CheckpointError as error:
            if step < 0:
                raise  # a start from scratch could hide checkpoints
            self._log(f"{error}; continuing without it")
            return []
        return steps

    def _copy(self, step: int) -> None:
        try:
            together(self._peers, self._store.tier, self.bucket, step)
        except Exception as error:  # noqa: BLE001 - whatever ends a thread must not be silent
            if self._peers.rank == 0:
                self._log(f"step {step} was not copied to {self.bucket.place}, training continues: {error}")
        else:
            self._prune(step)
        finally:
            self._store.held.discard(step)

    def _prune(self, step: int) -> None:
        """Delete what the rules do not keep (rank 0). An identity that may write need not be able to delete."""
        if self._peers.rank != 0:
            return
        self._say(f"step {step} is at {self.bucket.where(step)}")
        try:
            if self._keep.best:
                self.bucket.tell_losses(self._store.tier.losses())
            for name in superseded(self.bucket, self.bucket.steps(), self._keep):
                self.bucket.delete(name)
        except CheckpointError as error:
            self._log(f"old steps are not deleted: {error}; delete them with yard checkpoint prune {self.bucket.place}")


def together(peers: Peers, source: Tier, target: Tier, step: int) -> None:
    """Copy a step with all ranks, each a part of its files.

    Raises:
        CheckpointError: on every rank, if one fails; nothing of the copy is left.
    """
    attempts: list[str] = []

    def begin(_: list[Any]) -> str | None:
        attempt = copy.begin(source.sealed(step), target)
        attempts.extend([] if attempt is None else [attempt])
        return attempt

    def put(attempt: str) -> None:
        manifest = source.sealed(step).manifest()
        copy.put(source, target, attempt, manifest, share_of(manifest, peers.rank, peers.size))

    try:
        attempt: str | None = peers.agree(lambda: None, begin)
        if attempt is not None:
            peers.agree(lambda: put(attempt), lambda _: copy.commit(source.sealed(step), target, attempt))
    finally:
        for each in attempts:
            target.abandon(each)


class Tiers:
    """Where a run saves and finds its checkpoints. All methods are collective over the ranks."""

    def __init__(
        self, store: Store, *, every: int, steps: int, nodes: Nodes | None, nodes_every: int, remote: Remote | None,
        log: Log, say: Log,
    ) -> None:  # fmt: skip
        self.store, self._every, self._steps = store, every, steps
        self._nodes, self._nodes_every, self._remote = nodes, nodes_every, remote
        self._log, self._say = log, say

    def due(self, step: int) -> bool:
        """Whether some place gets this step."""
        every = self._every if self._nodes is None else self._nodes_every
        return step % every == 0 or step == self._steps

    def save(self, given: Snapshot, *, must: bool) -> bool:
        """Save one step wherever it is due; with `must` on the volume in any case.

        A place that has this state already, because a stop follows right after a save, does not get it again.
        Returns whether a place got it.

        Raises:
            CheckpointError: on every rank, if the volume does not get it. The other places are only reported.
        """
        step, last = given.step, given.step == self._steps
        written = False
        if self._nodes is not None and step % self._nodes_every == 0:
            written = self._save_on_nodes(self._nodes, given)
        if must or last or step % self._every == 0:
            written = self._save_on_volume(given) or written
        if self._remote is None:
            return written
        if must and not last:  # a request to stop
            self._remote.end()
        elif last or step % self._remote.every == 0:
            self._remote.start(step, wait=last)
        return written

    def _save_on_nodes(self, nodes: Nodes, given: Snapshot) -> bool:
        try:
            if nodes.holds(given.step):
                self._say(f"the nodes have step {given.step} already: not written again")
                return False
            nodes.save(given)
        except CheckpointError as error:
            self._log(f"step {given.step} was not saved on the nodes: {error}")
            return False
        return True

    def _save_on_volume(self, given: Snapshot) -> bool:
        if digest := self.store.holds(given.step):
            self._say(f"step {given.step} is committed already: not written again (its manifest: sha256 {digest})")
            return False
        return self.store.save(given, finite=True)

    def latest(self, check: Check, *, again: bool) -> Checkpoint | None:
        """The newest step that is whole in any place and that every rank can read, from the nearest that has it.

        With `again` this is a restart in a pod that has trained before: a step in its memory is then as new as any
        in the bucket, which is not asked. `check` raises CheckpointError for a step that cannot be restored.
        """
        found = self._newest(check, again=again)
        from_nodes = isinstance(found, Spread)
        if self._nodes is not None:
            self._nodes.current = _step(found) if from_nodes else None
        if from_nodes:
            self.store.current = None
        return found

    def _newest(self, check: Check, *, again: bool) -> Checkpoint | None:
        again = not self.store.peers.any(not again)
        near = -1 if self._nodes is None else self._nodes.newest_step()
        shared: list[int] = self.store.peers.agree(lambda: None, lambda _: self.store.steps())
        if near >= max([0, *shared]) and (again or not self._newer(near)):
            found = self._from_nodes(check)
            if _step(found) == near:
                return found
        best = self.store.latest(check)
        if near > _step(best):
            best = max(self._from_nodes(check), best, key=_step)  # the newest one may have turned out damaged
        for step in self._newer(_step(best)):
            if (found := self._from_bucket(step, check)) is not None:
                return found
        return best

    def _newer(self, step: int) -> list[int]:
        return [] if self._remote is None else self._remote.newer_than(step)

    def _from_nodes(self, check: Check) -> Checkpoint | None:
        """The newest step on the nodes, if it can be restored."""
        assert self._nodes is not None
        found = self._nodes.newest()
        if found is None:
            return None
        try:
            self.store.peers.agree(lambda: check(found), lambda _: None)
        except CheckpointError as error:
            self._log(f"step {found.step} on the nodes is not used: {error}")
            return None
        return found

    def _from_bucket(self, step: int, check: Check) -> Checkpoint | None:
        """A step of the bucket, copied to the volume first; None if it is damaged."""
        assert self._remote is not None
        try:
            self._log(f"fetching {self._remote.bucket.where(step)}")
            self._remote.fetch(step)
        except CheckpointError as error:
            self._log(f"{step_name(step)} of {self._remote.bucket.place} is not used: {error}")
            return None
        found = self.store.latest(check)
        return found if found is not None and found.step == step else None


def _step(found: Checkpoint | None) -> int:
    return -1 if found is None else found.step
