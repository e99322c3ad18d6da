"""The tensors and states that tests save: every value shows the step that it belongs to."""

from __future__ import annotations

from typing import Any

import torch

from training.checkpoint.read import Checkpoint
from training.checkpoint.shards import Shard, chunk_rows
from training.checkpoint.write import Snapshot

SHAPES: dict[str, tuple[int, ...]] = {
    "model.embedding": (7, 6),
    "model.weight": (5, 3, 2),
    "model.bias": (1,),
    "model.norm": (4,),
    "optimizer.count": (),
    "empty": (0, 3),
}
DTYPES = {"model.norm": torch.bfloat16, "optimizer.count": torch.int64}


def whole(step: int) -> dict[str, torch.Tensor]:
    """All tensors of `step`; no value occurs in two steps."""
    return {
        name: (torch.arange(size, dtype=torch.float64) + 100 * step).to(DTYPES.get(name, torch.float32)).reshape(shape)
        for name, shape in SHAPES.items()
        for size in [torch.Size(shape).numel()]
    }


def held(tensors: dict[str, torch.Tensor], rank: int, world: int, *, sharded: bool) -> dict[str, Shard]:
    """What `rank` holds: copies of its rows by torch.chunk's rule, or of everything (0-d tensors always)."""
    return {name: _held(tensor, rank, world, sharded=sharded) for name, tensor in tensors.items()}


def _held(tensor: torch.Tensor, rank: int, world: int, *, sharded: bool) -> Shard:
    if not sharded or tensor.ndim == 0:
        return Shard(tensor.clone(), tuple(tensor.shape), row_offset=0, replicated=True)
    first, count = chunk_rows(tensor.shape[0], world, rank)
    return Shard(tensor[first : first + count].clone(), tuple(tensor.shape), row_offset=first, replicated=False)


def zeroed(shards: dict[str, Shard]) -> dict[str, Shard]:
    """The same layout with all values zero."""
    return {
        name: Shard(torch.zeros_like(s.tensor), s.global_shape, s.row_offset, s.replicated)
        for name, s in shards.items()
    }


def same(ours: dict[str, Shard], theirs: dict[str, Shard]) -> bool:
    """Bitwise equality of two sets of shards."""
    return ours.keys() == theirs.keys() and all(
        ours[name].tensor.dtype == theirs[name].tensor.dtype and torch.equal(ours[name].tensor, theirs[name].tensor)
        for name in ours
    )


def state(step: int, rank: int) -> dict[str, Any]:
    """One rank's own state."""
    return {"rank": rank, "step": step, "generator": "c2VlZA=="}


def snapshot(step: int, tensors: dict[str, torch.Tensor] | None = None) -> Snapshot:
    """What the only rank saves at `step`; with `tensors` these ones."""
    return Snapshot(step, held(tensors or whole(step), 0, 1, sharded=False), state(step, 0), {"tokens": 1000 * step})


def assert_holds(checkpoint: Checkpoint, step: int) -> None:
    """Every tensor and state of the checkpoint belongs to `step`, and none is missing."""
    assert checkpoint.step == step
    assert checkpoint.run_state == {"tokens": 1000 * step}
    tensors = whole(step)
    assert checkpoint.names() == sorted(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.full(name), tensor), name
    for rank in range(checkpoint.world_size):
        assert checkpoint.rank_state(rank) == state(step, rank)
    assert checkpoint.rank_state(checkpoint.world_size) is None
