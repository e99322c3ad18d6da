"""Everything that a run needs to continue bit for bit after a restart: one table with an entry per part."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import Checkpoint
from training.checkpoint.shards import filled, shards_of
from training.checkpoint.write import Snapshot
from training.device import Device
from training.models.causal import trained_parameters
from training.task import Feed
from training.trainer.guard import History
from training.trainer.half_adamw import HalfAdamW, empty_moments
from training.trainer.parallelize import Parallel

Named = list[tuple[str, torch.Tensor]]


@dataclass
class TrainState:
    """The changing state of a run. `position` counts samples from the start of training, over epochs."""

    parallel: Parallel
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    device: Device
    feed: Feed
    seed: int
    step: int = 0
    position: int = 0
    tokens: int = 0
    history: History = field(default_factory=History)


@dataclass(frozen=True)
class Part:
    """One part of the state: its tensors, and its values, equal on all ranks or, with `per_rank`, of one."""

    tensors: Callable[[TrainState], Named] = lambda state: []
    save: Callable[[TrainState], dict[str, Any]] = lambda state: {}
    restore: Callable[[TrainState, dict[str, Any]], None] = lambda state, saved: None
    per_rank: bool = False


def _model_tensors(state: TrainState) -> Named:
    return [(f"model.{n}", p.detach()) for n, p in trained_parameters(state.parallel.model)]


def _optimizer_tensors(state: TrainState) -> Named:
    """Moments and step counts under `optimizer.<parameter>.<name>`; created here before the first step."""
    named = []
    for name, parameter in trained_parameters(state.parallel.model):
        moments = state.optimizer.state[parameter]
        if not moments:
            half = isinstance(state.optimizer, HalfAdamW)
            moments |= empty_moments(parameter, torch.bfloat16 if half else torch.float32)
        named += [(f"optimizer.{name}.{key}", value.detach()) for key, value in sorted(moments.items())]
    return named


def _save_schedule(state: TrainState) -> dict[str, Any]:
    return {"last_epoch": state.schedule.last_epoch}


def _restore_schedule(state: TrainState, saved: dict[str, Any]) -> None:
    """Move the schedule to its step; rates follow the present recipe, so more steps give a longer cosine."""
    state.schedule.last_epoch = saved["last_epoch"]
    rates = [
        base * f(saved["last_epoch"])
        for base, f in zip(state.schedule.base_lrs, state.schedule.lr_lambdas, strict=True)
    ]
    for group, rate in zip(state.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    state.schedule._last_lr = rates


def _save_rng(state: TrainState) -> dict[str, Any]:
    return {k: base64.b64encode(v.numpy().tobytes()).decode() for k, v in state.device.rng_state().items()}


def _restore_rng(state: TrainState, saved: dict[str, Any]) -> None:
    state.device.set_rng_state(
        {k: torch.frombuffer(bytearray(base64.b64decode(v)), dtype=torch.uint8) for k, v in saved.items()},
    )


def _save_data(state: TrainState) -> dict[str, Any]:
    return {"position": state.position}


def _restore_data(state: TrainState, saved: dict[str, Any]) -> None:
    state.position = saved["position"]


def _save_counters(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "tokens": state.tokens}


def _restore_counters(state: TrainState, saved: dict[str, Any]) -> None:
    state.step, state.tokens = saved["step"], saved["tokens"]


PARTS: dict[str, Part] = {
    "model": Part(tensors=_model_tensors),
    "optimizer": Part(tensors=_optimizer_tensors),
    "schedule": Part(save=_save_schedule, restore=_restore_schedule),
    "rng": Part(save=_save_rng, restore=_restore_rng, per_rank=True),
    "data": Part(save=_save_data, restore=_restore_data),
    "feed": Part(save=lambda state: state.feed.state(), per_rank=True),
    "counters": Part(save=_save_counters, restore=_restore_counters),
    "history": Part(
        save=lambda state: state.history.saved(), restore=lambda state, saved: state.history.restore(saved)
    ),
}


def collect(state: TrainState, meta: dict[str, Any]) -> Snapshot:
    """Collect all parts of the state as they are now; tensors share memory with the run until `on_host`."""
    tensors = shards_of(pair for part in PARTS.values() for pair in part.tensors(state))
    alike = {name: part.save(state) for name, part in PARTS.items() if not part.per_rank}
    own = {name: part.save(state) for name, part in PARTS.items() if part.per_rank}
    return Snapshot(state.step, tensors, own, alike, meta)


def on_host(given: Snapshot, device: Device) -> Snapshot:
    """A copy in the host's memory, complete when this returns."""
    tensors = {name: replace(each, tensor=device.copy_to_host(each.tensor)) for name, each in given.tensors.items()}
    device.synchronize()
    return replace(given, tensors=tensors)


_COUNTS = {"schedule": ("last_epoch",), "data": ("position",), "counters": ("step", "tokens")}


def check(checkpoint: Checkpoint, rank: int) -> None:
    """CheckpointError if what `restore` needs beside the tensors is missing or is not a count."""
    for part, names in _COUNTS.items():
        saved = checkpoint.run_state.get(part)
        counts = [saved.get(name) for name in names] if isinstance(saved, dict) else [None]
        if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
            raise CheckpointError(f"{checkpoint.directory.name}: the state of {part} is damaged")
    if checkpoint.run_state["counters"]["step"] != checkpoint.step:
        raise CheckpointError(f"{checkpoint.directory.name}: its state is that of another step")
    checkpoint.rank_state(rank)


def restore(state: TrainState, checkpoint: Checkpoint, rank: int) -> None:
    """Load a verified checkpoint into a new state, whatever number of ranks wrote it.

    A rank that did not exist when it was written starts its own random stream from (seed, step, rank).
    """
    named = [pair for part in PARTS.values() for pair in part.tensors(state)]
    with filled(named) as shards:
        checkpoint.load(shards)
    try:
        _restore_values(state, checkpoint, rank)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{checkpoint.directory.name}: its saved state is damaged: {error!r}") from error


def _restore_values(state: TrainState, checkpoint: Checkpoint, rank: int) -> None:
    own = checkpoint.rank_state(rank)
    for name, part in PARTS.items():
        if part.per_rank and own is not None:
            part.restore(state, own[name])
        elif not part.per_rank:
            part.restore(state, checkpoint.run_state.get(name, {}))

    def of_rank(writer: int) -> dict[str, Any]:
        saved = checkpoint.rank_state(writer)
        return {} if saved is None else saved["feed"]

    state.feed.restore(state.position, checkpoint.world_size, of_rank)
    if own is None:
        state.device.seed(rank_seed(state.seed, rank, state.step))


def rank_seed(seed: int, rank: int, step: int = 0) -> int:
    """Seed of one rank's random stream."""
    return (seed * 1_000_003 + step * 10_007 + rank) % 2**63
