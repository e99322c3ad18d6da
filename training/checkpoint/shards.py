"""The part of a named tensor that each rank holds, from plain tensors and FSDP2's DTensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import rows_of
from training.checkpoint.tensors import CODES

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

try:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as Split
except ImportError:  # torch before 2.5
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]
    from torch.distributed._tensor import Shard as Split  # type: ignore[attr-defined]

TENSOR = "tensor"  # the dimension of a mesh whose ranks compute each product together
OWN = {"replicate", "shard", TENSOR}  # of the trainer's meshes: along one that is missing, all ranks hold the same


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
    """Shards of this rank that share memory with the given tensors, but for those split by columns.

    Plain tensors are replicated (DDP, optimizer step counts). DTensors lie on a mesh, replicated or with rows
    split in torch.chunk's way: over its dimension `tensor`, if it has one, and then over the last other one, as
    FSDP2 lays them out. The ranks of `tensor` may split columns instead; they exchange them for rows here,
    which all of them do together. Every other layout is refused.
    """
    shards: dict[str, Shard] = {}
    for name, tensor in named:
        if name in shards:
            raise CheckpointError(f"tensor {name!r} is given twice")
        shards[name] = _of_dtensor(name, tensor) if isinstance(tensor, DTensor) else _whole(tensor)
    return shards


@contextmanager
def filled(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[dict[str, Shard]]:
    """Shards of tensors that are filled in this context; afterwards the tensors have the values."""
    given = list(named)
    shards = shards_of(given)
    yield shards
    for name, tensor in given:
        if isinstance(tensor, DTensor) and _splits_columns(tensor):
            tensor.to_local().copy_(_exchanged(shards[name].tensor, tensor.device_mesh, 0, 1))


def _whole(tensor: torch.Tensor) -> Shard:
    return Shard(tensor.detach(), tuple(tensor.shape), row_offset=0, replicated=True)


def _of_dtensor(name: str, tensor: DTensor) -> Shard:
    mesh, placements, shape = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
    local: torch.Tensor = tensor.to_local().detach()
    known = mesh.size() == dist.get_world_size() or set(_names(mesh)) <= OWN  # others may hold other values elsewhere
    if known and all(placement.is_replicate() for placement in placements):
        return _whole(local)
    *outer, last = [p for p, dim in zip(placements, _names(mesh)) if dim != TENSOR]
    rows_last = _split(last) == 0 and all(_split(p) is None for p in outer) and _along(tensor) in (None, 0, 1)
    if not known or not rows_last:
        raise CheckpointError(
            f"tensor {name!r}: laid out as {placements} over a mesh of {tuple(mesh.shape)}; "
            "only replication or rows split over the last dimension of a mesh of all ranks can be stored"
        )
    first, count = 0, shape[0]
    parts = [(mesh.size(dim), mesh.get_local_rank(dim)) for dim, p in enumerate(placements) if _split(p) == 0]
    for size, index in reversed(parts):  # those that compute together split first
        start, count = chunk_rows(count, size, index)
        first += start
    if local.numel() == 0:
        local = local.reshape(count, *local.shape[1:])
    if local.shape[0] != count:
        raise CheckpointError(f"tensor {name!r}: {local.shape[0]} rows are here, torch.chunk gives {count}")
    holders = math.prod(size for size, _ in parts)
    if _splits_columns(tensor):
        dim = _names(mesh).index(TENSOR)
        start, _ = chunk_rows(count, mesh.size(dim), mesh.get_local_rank(dim))
        local, first = _exchanged(local, mesh, 1, 0), first + start
        holders *= mesh.size(dim)
    return Shard(local, shape, row_offset=first, replicated=holders < dist.get_world_size())


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return mesh.mesh_dim_names or ("",) * mesh.ndim


def _split(placement: Placement) -> int | None:
    """The dimension of a tensor that a placement splits, FSDP2's strided one included."""
    dim = None if placement.is_replicate() or placement.is_partial() else getattr(placement, "dim", None)
    return dim if dim is None else int(dim)


def _along(tensor: DTensor) -> int | None:
    """The dimension that the ranks of `tensor` split, None if they do not."""
    names = _names(tensor.device_mesh)
    return _split(tensor.placements[names.index(TENSOR)]) if TENSOR in names else None


def _splits_columns(tensor: DTensor) -> bool:
    return _along(tensor) == 1


def _exchanged(local: torch.Tensor, mesh: DeviceMesh, split: int, wanted: int) -> torch.Tensor:
    """What the ranks of `tensor` hold together, split along another dimension."""
    whole = DTensor.from_local(local.contiguous(), mesh[TENSOR], [Split(split)], run_check=False)
    return whole.redistribute(placements=[Split(wanted)]).to_local()


def chunk_rows(rows: int, parts: int, index: int) -> tuple[int, int]:
    """First row and row count of part `index` of `rows` cut by torch.chunk's rule (some may be empty)."""
    size = -(-rows // parts)
    first = min(rows, index * size)
    return first, min(rows, first + size) - first
