"""Which rank writes which rows: the manifest's tensor table, computed from what every rank holds."""

from __future__ import annotations

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
    owners = _owners(held)
    return {name: _tensor(name, [rank[name] for rank in held], owners) for name in sorted(held[0])}


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


def _owners(held: Sequence[Mapping[str, Holding]]) -> dict[tuple[str, int], int]:
    """Writing rank of the rows of each replicated tensor, by name and first row.

    The largest rows come first; each time it is the rank with the fewest bytes so far among those that hold them.
    """
    load = [sum(_bytes(entry) for entry in rank.values() if not entry["replicated"]) for rank in held]
    holders: dict[tuple[str, int], list[int]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for name in (name for name, entry in held[0].items() if entry["replicated"]):
        for rank, theirs in enumerate(held):
            rows = name, theirs[name]["rows"][0]
            holders.setdefault(rows, []).append(rank)
            sizes[rows] = _bytes(theirs[name])
    owners = {}
    for rows in sorted(sizes, key=lambda rows: (-sizes[rows], rows)):
        owners[rows] = min(holders[rows], key=lambda rank: (load[rank], rank))
        load[owners[rows]] += sizes[rows]
    return owners


def _bytes(entry: Holding) -> int:
    first, end = entry["rows"]
    return byte_count(entry["dtype"], (end - first, *entry["shape"][1:]))


def _tensor(name: str, held: Sequence[Holding], owners: Mapping[tuple[str, int], int]) -> Tensor:
    shape = tuple(held[0]["shape"])
    parts = [
        (*entry["rows"], rank) for rank, entry in enumerate(held) if owners.get((name, entry["rows"][0]), rank) == rank
    ]
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
