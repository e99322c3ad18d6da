"""The functions of `import trainyard`, for a training script of one process or of many ranks.

`report` is for every rank by itself. `latest`, `save` and `stopping` are collective: where there are several
ranks, all of them call the function at the same place, after torch.distributed.init_process_group.

The run directory is TRAINYARD_RUN. Without it nothing is reported, and checkpoints cannot be saved.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from training.agent import metrics_file
from training.agent.mask import Mask
from training.agent.ranks import launched_rank
from training.agent.state import join, split
from training.checkpoint.errors import CheckpointError
from training.run import failure, heartbeat
from training.run.directory import RunDir
from training.run.failure import CODES, Failure
from training.run.heartbeat import Phase

if TYPE_CHECKING:
    from training.checkpoint.peers import Peers
    from training.checkpoint.read import Checkpoint
    from training.checkpoint.store import Store

KEPT = 2  # checkpoints
_DRAIN_FILE = "TRAINYARD_DRAIN_FILE"
_COMMON, _OWN = "state", "own"


class Drained(SystemExit):
    """All ranks stopped on request, and the step is saved. The exit code is that of class drained."""

    def __init__(self, step: int) -> None:
        super().__init__(CODES["drained"])
        self.step = step


class Found:
    """A verified checkpoint: its step, and what the script saved with it."""

    def __init__(self, checkpoint: Checkpoint, rank: int) -> None:
        self.step = checkpoint.step
        self.directory = checkpoint.directory
        self.files = checkpoint.files
        """The directory that `write` filled, None without one."""
        self._checkpoint, self._rank = checkpoint, rank

    @property
    def state(self) -> Any:
        """The state that all ranks saved, with whole tensors on the CPU."""
        return join(self._saved(0).get(_COMMON), self._checkpoint.full)

    @property
    def own(self) -> Any:
        """This rank's own state; None if it had none, or if fewer ranks saved."""
        if self._rank >= self._checkpoint.world_size:
            return None
        return join(self._saved(self._rank).get(_OWN), self._own_tensor)

    def _saved(self, rank: int) -> dict[str, Any]:
        return self._checkpoint.rank_state(rank) or {}

    def _own_tensor(self, name: str) -> Any:
        import torch

        from training.checkpoint.tensors import DTYPES

        stored = self._checkpoint.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.directory.name}: has no tensor {name!r}")
        row = torch.empty((1, *stored.shape[1:]), dtype=DTYPES[stored.dtype])
        self._checkpoint.read(name, self._rank, row)
        return row[0]


class Session:
    """What this process knows of its run."""

    def __init__(self) -> None:
        run = os.environ.get("TRAINYARD_RUN")
        self.run = RunDir(run) if run else None
        self.step: int | None = None
        self._reporting = False
        self._asked = False
        self._listening = False
        self._peers: Peers | None = None
        self._store: Store | None = None
        self._kept = KEPT

    @property
    def rank(self) -> int:
        """That of the process group: a script that spawns its ranks tells it to no variable. Else the launcher's."""
        group = sys.modules.get("torch.distributed")
        return int(group.get_rank()) if group and group.is_available() and group.is_initialized() else launched_rank()

    def report(self, step: int, values: dict[str, Any]) -> None:
        self.step = step
        if self.run is None:
            return
        if not self._reporting:
            self._reporting = True
            heartbeat.begin(self.run.heartbeat, self.rank)
            self.record_exceptions()
        heartbeat.enter("training", step)
        if self.rank:
            return
        known = {key: _number(value) for key, value in values.items() if value is not None}
        if known.keys() - {"steps", "epoch"}:
            with contextlib.suppress(OSError):  # a full volume must not end a run
                metrics_file.append(self.run.metrics, [{"step": step, "time": time.time(), **known}])

    def record_exceptions(self) -> None:
        """Write a failure record when an exception ends this process, then do what was done before."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            with contextlib.suppress(OSError):
                self._record(error)
            before(kind, error, trace)

        sys.excepthook = hook

    def _record(self, error: BaseException) -> None:
        if self.run is None:
            return
        made = failure.of(error, self.rank, self.step, heartbeat.current())
        mask = Mask(os.environ)
        masked = {"message": mask(made.message), "traceback": mask(made.traceback)}
        failure.write(Failure(**{**vars(made), **masked}), self.run)

    def listen(self) -> None:
        """Take SIGTERM as a request to stop. A handler that the script has is called as well."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening = True
        before = signal.getsignal(signal.SIGTERM)

        def asked(number: int, frame: Any) -> None:
            self._asked = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, asked)

    @property
    def asked(self) -> bool:
        """Whether this rank knows of a request to stop."""
        file = os.environ.get(_DRAIN_FILE)
        return self._asked or bool(file and os.path.exists(file))

    def store(self, keep: int = KEPT) -> Store:
        """Return the store of this run; collective. Raises CheckpointError where it cannot be used."""
        if self.run is None:
            raise CheckpointError("TRAINYARD_RUN is not set: name the directory of this run")
        from training.checkpoint.keep import Rules
        from training.checkpoint.store import Store

        group = self.peers().group
        if self._store is None or keep != self._kept:
            self._store, self._kept = Store(self.run.checkpoints, keep=Rules(keep), group=group, log=_say), keep
        return self._store

    def peers(self) -> Peers:
        """Return the ranks of this run; collective. Raises CheckpointError before they have met."""
        import torch.distributed as dist

        from training.checkpoint.peers import Peers

        ranks = os.environ.get("WORLD_SIZE", "1")
        if ranks not in ("", "1") and not (dist.is_available() and dist.is_initialized()):
            raise CheckpointError(f"there are {ranks} ranks: call torch.distributed.init_process_group first")
        if self._peers is None:
            atexit.register(self._leave)
        if self._peers is None or (self._peers.group is None and dist.is_available() and dist.is_initialized()):
            self._peers, self._store = Peers(None), None  # a script may have asked before its ranks met
        return self._peers

    def _leave(self) -> None:
        """Let the process group go before Python ends: after that, gloo's threads may abort the process.

        Modules such as DistributedDataParallel hold the group in cycles of references.
        """
        self._peers = self._store = None
        gc.collect()


_session: Session | None = None


def _the_session() -> Session:
    global _session
    if _session is None:
        _session = Session()
    return _session


def report(step: int, *, steps: int | None = None, loss: Any = None, **values: Any) -> None:
    """Tell that a step is done: every rank after each step. This is the rank's heartbeat.

    `steps` is the number of steps of the whole run. Rank 0 writes `loss` and other numbers to metrics.jsonl:
    `lr`, `grad_norm`, `tokens_per_s`, `samples_per_s`, `mfu`, `memory_gib`, `epoch`. A value may be a tensor
    with one number; reading it waits for the device.
    """
    _the_session().report(int(step), {"steps": steps, "loss": loss, **values})


def during(phase: Phase) -> contextlib.AbstractContextManager[None]:
    """Be in another phase for a while, such as `evaluating` or `saving`, whose steps may take long."""
    return heartbeat.during(phase)


def latest() -> Found | None:
    """Return the newest checkpoint that verifies, the same on every rank; None without one. Collective."""
    session = _the_session()
    store = session.store()
    found = store.latest()
    return None if found is None else Found(found, session.rank)


def stopping() -> bool:
    """Return whether a rank was asked to stop (SIGTERM), the same answer on every rank. Collective.

    From the first call on, SIGTERM no longer ends this process: save, and end the script.
    """
    session = _the_session()
    session.listen()
    return session.peers().any(session.asked)


def save(
    state: Any,
    step: int,
    *,
    own: Any = None,
    write: Callable[[Path], None] | None = None,
    keep: int = KEPT,
) -> Path:
    """Commit a checkpoint and return its directory; raise Drained if a rank was asked to stop. Collective.

    `state` is the same on all ranks, or has DTensors as FSDP2 makes them; `own` is this rank's own, with the
    same shapes on all ranks. `write` writes files into the directory that it gets, which all ranks share. The
    newest `keep` checkpoints stay, at least two. A step that is there already is not written again.

    Raises:
        CheckpointError: it cannot be written. Nothing of it is left, and earlier checkpoints are unchanged.
        Drained: after the commit; let it end the process.
    """
    from training.checkpoint.layout import step_name
    from training.checkpoint.write import Snapshot

    session, step = _the_session(), int(step)  # numbers of NumPy and of tensors too
    session.listen()
    store, peers = session.store(keep), session.peers()
    tensors: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    trees = {_COMMON: split(state, tensors, _COMMON), _OWN: split(own, rows, _OWN)}
    with heartbeat.during("saving"):
        store.save(Snapshot(step, _shards(tensors, rows, peers), trees, {}, {"script": True}, write))
    if peers.any(session.asked):
        raise Drained(step)
    return store.directory / step_name(step)


def _shards(tensors: dict[str, Any], rows: dict[str, Any], peers: Peers) -> dict[str, Any]:
    """The shards of a save: each rank's own tensors are rows of one tensor with a row for each rank."""
    from training.checkpoint.shards import Shard, shards_of

    own = {
        name: Shard(row.detach()[None], (peers.size, *row.shape), row_offset=peers.rank, replicated=False)
        for name, row in rows.items()
    }
    return {**shards_of(tensors.items()), **own}


def _number(value: Any) -> int | float:
    """A number, or that in a tensor, also in one that still has its gradient's history."""
    if type(value) in (int, float):
        return value
    return float(value.detach() if hasattr(value, "detach") else value)


def _say(text: str) -> None:
    print(f"trainyard: {text}", file=sys.stderr, flush=True)
