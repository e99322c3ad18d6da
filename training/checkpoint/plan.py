"""Which rank writes which rows: the manifest's tensor table, computed from what every rank holds."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Dict

from training.checkpoint.errors import CheckpointError
from training.checkpoint.header import byte_count
from training.checkpoint.layout import Piece, Tensor, rows_of, tensor_file
from training.checkpoint.shards import Shard, check_shard
from training.checkpoint.tensors import CODES

Holding = Dict[str, Any]  # JSON: the part of one tensor that one rank holds


def describe(tensors: Mapping[str, Shard]) -> dict[str, Holding]:
    """What this rank holds, as JSON; CheckpointError with the name of an inconsistent tensor."""
    for name, shard in tensors.items():
        check_shard(name, shard)
    return {
        name: {
            "dtype": CODES[shard.tensor.dtype],
            "shape": list(shard.global_shape),
            "rows": [shard.row_offset, shard.row_offset + shard.row_count],
            "replicated": shard.replicated,
        }
        for name, shard in tensors.items()
    }


def assign(held: Sequence[Mapping[str, Holding]]) -> dict[str, Tensor]:
    """The tensor table from every rank's holdings; replicated tensors go to the ranks with least to write.

    CheckpointError if ranks disagree, or if rows are held twice or by no rank.
    """
    _check_same(held)
    load = [sum(_bytes(entry) for entry in rank.values() if not entry["replicated"]) for rank in held]
    owners = _owners(held[0], load)
    return {name: _tensor(name, [rank[name] for rank in held], owners.get(name)) for name in sorted(held[0])}


def _check_same(held: Sequence[Mapping[str, Holding]]) -> None:
    for rank, theirs in enumerate(held):
        for name in sorted(held[0].keys() ^ theirs.keys()):
            having, lacking = (0, rank) if name in held[0] else (rank, 0)
            raise CheckpointError(f"tensor {name!r} is on rank {having} but not on rank {lacking}")
        for name, entry in theirs.items():
            for key in ("dtype", "shape", "replicated"):
                if entry[key] != held[0][name][key]:
                    ours = held[0][name][key]
                    trouble = f"{key} is {ours} on rank 0, {entry[key]} on rank {rank}"
                    raise CheckpointError(f"tensor {name!r}: {trouble}")


def _owners(holdings: Mapping[str, Holding], load: Sequence[int]) -> dict[str, int]:
    """Writing rank of each replicated tensor: largest first, to the rank with fewest bytes so far."""
    ranks = [(count, rank) for rank, count in enumerate(load)]
    heapq.heapify(ranks)
    replicated = {name: _bytes(entry) for name, entry in holdings.items() if entry["replicated"]}
    owners = {}
    for name in sorted(replicated, key=lambda name: (-replicated[name], name)):
        count, rank = ranks[0]
        heapq.heapreplace(ranks, (count + replicated[name], rank))
        owners[name] = rank
    return owners


def _bytes(entry: Holding) -> int:
    first, end = entry["rows"]
    return byte_count(entry["dtype"], (end - first, *entry["shape"][1:]))


def _tensor(name: str, held: Sequence[Holding], owner: int | None) -> Tensor:
    shape = tuple(held[0]["shape"])
    parts = [(*entry["rows"], rank) for rank, entry in enumerate(held) if owner is None or rank == owner]
    parts = sorted(part for part in parts if part[0] < part[1])
    pieces = [Piece(file=tensor_file(rank), rows=(first, end)) for first, end, rank in parts]
    at = 0
    for piece in [*pieces, Piece(file="", rows=(rows_of(shape), rows_of(shape)))]:
        if piece.rows[0] != at:
            low, high = sorted((at, piece.rows[0]))
            trouble = "held by no rank" if piece.rows[0] > at else "held by more than one rank"
            raise CheckpointError(f"tensor {name!r}: rows {low} to {high} are {trouble}")
        at = piece.rows[1]
    return Tensor(dtype=held[0]["dtype"], shape=shape, shards=tuple(pieces))
