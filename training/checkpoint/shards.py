"""The part of a named tensor that each rank holds, from plain tensors and FSDP2's DTensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import rows_of
from training.checkpoint.tensors import CODES

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # torch before 2.5
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Shard:
    """The part of one named tensor that this rank holds."""

    tensor: torch.Tensor
    """Local rows, any device; filled in place when loading."""
    global_shape: tuple[int, ...]
    row_offset: int
    """First row of dimension 0 held here; 0 when whole."""
    replicated: bool
    """Other ranks hold the same rows, or all of them the same whole tensor, so exactly one rank writes it."""

    @property
    def row_count(self) -> int:
        """Rows of dimension 0 held here; 1 for a 0-d tensor."""
        return rows_of(tuple(self.tensor.shape))


def check_shard(name: str, shard: Shard) -> None:
    """CheckpointError if the shard is inconsistent or has a dtype that safetensors cannot hold."""
    if shard.tensor.dtype not in CODES:
        raise CheckpointError(f"tensor {name!r}: dtype {shard.tensor.dtype} cannot be stored")
    local, whole = tuple(shard.tensor.shape), shard.global_shape
    end = shard.row_offset + shard.row_count
    if len(local) != len(whole) or local[1:] != whole[1:] or shard.row_offset < 0 or end > rows_of(whole):
        raise CheckpointError(f"tensor {name!r}: local {local} from row {shard.row_offset} is not in {whole}")


def shards_of(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Shard]:
    """Shards of this rank that share memory with the given tensors.

    Plain tensors are replicated (DDP, optimizer step counts). DTensors lie on a mesh of all ranks, replicated
    or sharded over dimension 0 of its last dimension in torch.chunk's rows, as FSDP2 lays them out; every
    other layout is refused.
    """
    shards: dict[str, Shard] = {}
    for name, tensor in named:
        if name in shards:
            raise CheckpointError(f"tensor {name!r} is given twice")
        shards[name] = _of_dtensor(name, tensor) if isinstance(tensor, DTensor) else _whole(tensor)
    return shards


def _whole(tensor: torch.Tensor) -> Shard:
    return Shard(tensor.detach(), tuple(tensor.shape), row_offset=0, replicated=True)


def _of_dtensor(name: str, tensor: DTensor) -> Shard:
    mesh, placements, shape = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
    local: torch.Tensor = tensor.to_local().detach()
    if mesh.size() == dist.get_world_size() and all(placement.is_replicate() for placement in placements):
        return _whole(local)
    *outer, last = placements
    if mesh.size() != dist.get_world_size() or not last.is_shard(0) or not all(p.is_replicate() for p in outer):
        raise CheckpointError(
            f"tensor {name!r}: laid out as {placements} over a mesh of {tuple(mesh.shape)}; "
            "only replication or rows sharded over the last mesh dimension of all ranks can be stored"
        )
    first, count = chunk_rows(shape[0], mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1))
    if local.numel() == 0:
        local = local.reshape(count, *shape[1:])
    if local.shape[0] != count:
        raise CheckpointError(f"tensor {name!r}: {local.shape[0]} rows are here, torch.chunk gives {count}")
    return Shard(local, shape, row_offset=first, replicated=bool(outer))


def chunk_rows(rows: int, parts: int, index: int) -> tuple[int, int]:
    """First row and row count of part `index` of `rows` cut by torch.chunk's rule (some may be empty)."""
    size = -(-rows // parts)
    first = min(rows, index * size)
    return first, min(rows, first + size) - first
