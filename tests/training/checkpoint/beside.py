"""Training on real ranks with a save in flight, of which one is killed; `ranks.py` calls these functions.

The state, saver, tiers and store are those of the trainer. A run saves each 4 steps. The save of step 12 is written
while steps 13 to 15 are trained: its writer waits for step 13 before its first call.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist

from tests.training.checkpoint.boundaries import Boundaries
from tests.training.checkpoint.ranks import rank_and_world
from training.checkpoint.layout import step_name
from training.checkpoint.node import Nodes
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store
from training.checkpoint.tiers import Tiers
from training.checkpoint.write import Snapshot
from training.device.cpu import Cpu
from training.distributed.ranks import Ranks
from training.task import Feed, Trainable
from training.trainer import state
from training.trainer.parallelize import Parallel
from training.trainer.saver import Saver
from training.trainer.state import TrainState, rank_seed

EVERY, IN_FLIGHT, LAST = 4, 12, 16
SEED = 7


class Job:
    """One rank of a run in a directory: `checkpoints`, and with `nodes` a node for each rank."""

    def __init__(self, home: str, *, nodes: bool) -> None:
        rank, world = rank_and_world()
        logging.getLogger("trainyard").addHandler(logging.NullHandler())
        self.now = _new(rank, world)
        self.told: list[str] = []
        group = dist.new_group(backend="gloo") if world > 1 else None
        store = Store(Path(home) / "run" / "checkpoints", group=cast("Any", group), log=self.told.append)
        near = Nodes(Path(home) / "nodes", "run", f"node-{rank}", store.peers, keep=2, log=self.told.append)
        self.tiers = Tiers(
            store, every=EVERY, steps=LAST, nodes=near if nodes else None, nodes_every=EVERY, remote=None,
            log=self.told.append, say=self.told.append,
        )  # fmt: skip
        self.saver = Saver(self.tiers, {}, beside=True)

    def restore(self) -> int:
        """Load the newest step; return it, 0 without one."""
        check = partial(state.check, rank=rank_and_world()[0])
        found = self.tiers.latest(check, again=True)
        if found is not None:
            state.restore(self.now, found, rank_and_world()[0])
        return self.now.step

    def train(self, end: int) -> None:
        """Train up to a step, and save beside the steps each time that it is due."""
        while self.now.step < end:
            _step(self.now)
            if self.tiers.due(self.now.step):
                self.saver.save(self.now, must=self.now.step == LAST)


def _new(rank: int, world: int) -> TrainState:
    """A state at step 0. Every rank holds the whole model, of which each writes a part."""
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    feed = SimpleNamespace(state=dict, restore=lambda *_: None)
    parallel = Parallel(model, cast("Trainable", model), Ranks(rank, world, rank, None))
    torch.manual_seed(rank_seed(SEED, rank))
    device = Cpu(torch.device("cpu"), "fp32", "eager", False, "")
    return TrainState(parallel, optimizer, schedule, device, cast("Feed", feed), SEED)


def _step(now: TrainState) -> None:
    """One step on all ranks' random samples, which the states of their generators decide."""
    now.parallel.wrapped(torch.randn(4, 6)).square().sum().backward()
    if dist.is_initialized():
        gradients = [each.grad for each in now.parallel.model.parameters() if each.grad is not None]
        together = torch.cat([each.reshape(-1) for each in gradients])
        dist.all_reduce(together)
        for each, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
            each.copy_(part.view_as(each))
    now.optimizer.step()
    now.optimizer.zero_grad(set_to_none=True)
    now.schedule.step()
    now.step, now.position, now.tokens = now.step + 1, now.position + 4, now.tokens + 24


def _digest(tensors: Mapping[str, torch.Tensor], run_state: Mapping[str, Any]) -> str:
    """A digest of a state: its tensors, and what is the same on all ranks."""
    found = sha256(json.dumps(run_state, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _digest_of(now: TrainState) -> str:
    named = [pair for part in state.PARTS.values() for pair in part.tensors(now)]
    return _digest(dict(named), state.collect(now, {}).run_state)


def saved_digest(directory: Path) -> str:
    """The digest of the state in a committed step, with every byte verified."""
    found = open_checkpoint(directory)
    return _digest({name: found.full(name) for name in found.names()}, found.run_state)


def course() -> list[str]:
    """The digests of the states at steps 0 to 16, of a run that nothing disturbs."""
    now, found = _new(*rank_and_world()), []
    while True:
        found.append(_digest_of(now))
        if now.step == LAST:
            return found
        _step(now)


class InFlight(Boundaries):
    """The boundaries of the thread that saves. Its first call waits until training is at a later step."""

    def __init__(self, point: int | None, now: TrainState, proof: Path) -> None:
        super().__init__(point)
        self._now, self._proof = now, proof

    def _pass(self, boundary: str) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        end = time.monotonic() + 30
        while not self.passed and self._now.step <= IN_FLIGHT and time.monotonic() < end:
            time.sleep(0.001)
        if self._point == len(self.passed):
            descriptor = self._real["open"](self._proof, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            told = {"training": self._now.step, "boundary": boundary, "thread": threading.current_thread().name}
            self._real["write"](descriptor, json.dumps(told).encode())
        super()._pass(boundary)


def train_until_killed(
    home: str, victim: int, point: int | None, nodes: bool = False, broken: str = "", writer: str = "trainer"
) -> list[str]:
    """Continue with step 9, and kill the victim in the save of step 12; return this rank's boundaries.

    `broken` is a damaged step 12, which appears after the start. `writer` is the trainer's or, as controls, one that is
    `unstaged` and shares its memory with training, or one that writes `in place`.
    """
    job = Job(home, nodes=nodes)
    assert job.restore() == IN_FLIGHT - EVERY
    if writer == "in place":
        job.tiers.save = partial(_write_in_place, Path(home))  # type: ignore[method-assign]
        job.saver.save(job.now, must=False)
        job.saver.finish()
    job.train(IN_FLIGHT - 1)
    rank, world = rank_and_world()
    if broken and rank == 0:
        os.rename(broken, job.tiers.store.directory / step_name(IN_FLIGHT))
    if world > 1:
        dist.barrier()
    boundaries = InFlight(point if rank == victim else None, job.now, Path(home) / "proof.json")
    with ExitStack() as held:
        if writer == "unstaged":
            held.enter_context(mock.patch.object(state, "on_host", lambda given, device: given))
        held.enter_context(boundaries.watched())
        job.train(LAST - 1)
        job.saver.finish()
    return boundaries.passed


def fail_in_flight(home: str, victim: int, patience: float) -> None:
    """Continue with step 9; the victim fails at step 13, waits so long for the save of step 12, and ends."""
    job = Job(home, nodes=False)
    job.restore()
    save = job.tiers.store.save

    def slow(*given: Any, **more: Any) -> bool:
        while job.now.step <= IN_FLIGHT:
            time.sleep(0.001)
        time.sleep(1)
        return save(*given, **more)

    job.tiers.store.save = slow  # type: ignore[method-assign]
    job.train(IN_FLIGHT + 1)
    if rank_and_world()[0] == victim:
        job.saver.finish(patience)
        os._exit(1)
    job.train(LAST)


def _write_in_place(home: Path, given: Snapshot, *, must: bool) -> bool:
    """The control: one file per tensor, written over the old one, without a protocol."""
    (home / "in-place").mkdir(exist_ok=True)
    for name, shard in given.tensors.items():
        path = home / "in-place" / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, shard.tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        os.close(descriptor)
    return True


def steps_in_place(home: str) -> list[int]:
    """The steps, of 8 and 12, of which the files that are written in place hold all values."""
    now, found = _new(*rank_and_world()), []
    while now.step < IN_FLIGHT:
        _step(now)
        tensors = state.collect(now, {}).tensors
        files = {name: (Path(home) / "in-place" / name).read_bytes() for name in tensors}
        if all(each.tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == files[n] for n, each in tensors.items()):
            found.append(now.step)
    return found


def begin(home: str, nodes: bool = False) -> None:
    """Train up to step 8, with steps 4 and 8 saved."""
    job = Job(home, nodes=nodes)
    job.train(IN_FLIGHT - EVERY)
    job.saver.finish()


def continue_to_the_end(home: str, nodes: bool = False) -> dict[str, Any]:
    """A new job: the step that it finds, the digests of what it loads and of the end, and its log."""
    seen = newest(Path(home) / "run" / "checkpoints")
    job = Job(home, nodes=nodes)
    found, loaded = job.restore(), _digest_of(job.now)
    job.train(LAST)
    assert seen is not None
    return {"seen": seen.step, "found": found, "loaded": loaded, "end": _digest_of(job.now), "told": job.told}
