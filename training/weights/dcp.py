"""The tensors of a DCP directory, read by rows."""

from __future__ import annotations

from pathlib import Path

import torch

from training.checkpoint.dcp import Piece, Tensor, read_index, read_piece
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import rows_of
from training.checkpoint.tensors import DTYPES
from training.weights.tensors import Kind


class DcpTensors:
    """The tensors of a DCP directory; its pickles are never executed (`training.checkpoint.dcp`)."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.place = directory, str(directory)
        self._index = read_index(directory)
        self.kinds = {name: Kind(tensor.dtype, tensor.shape) for name, tensor in self._index.items()}

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        """Fill `out` with the rows from `row` on, from the pieces that hold them."""
        tensor, end = self._index[name], row + rows_of(tuple(out.shape))
        for piece in tensor.pieces:
            if not piece.sizes:
                out.copy_(self._block(tensor, piece))
                continue
            low, high = max(row, piece.offsets[0]), min(end, piece.offsets[0] + piece.sizes[0])
            if low < high:
                block = self._block(tensor, piece)[low - piece.offsets[0] : high - piece.offsets[0]]
                places = zip(piece.offsets[1:], piece.sizes[1:], strict=True)
                rest = [slice(first, first + size) for first, size in places]
                out[(slice(low - row, high - row), *rest)].copy_(block)

    def _block(self, tensor: Tensor, piece: Piece) -> torch.Tensor:
        dtype, values = DTYPES[tensor.dtype], read_piece(self._directory, tensor, piece)
        if 0 in piece.sizes:
            return torch.empty(piece.sizes, dtype=dtype)
        try:
            flat = torch.frombuffer(bytearray(values.data), dtype=dtype)
            return flat.as_strided(piece.sizes, values.strides, values.first)
        except (RuntimeError, ValueError) as error:
            place = f"{self._directory.name}/{piece.file}: the piece at byte {piece.first:,}"
            raise CheckpointError(f"{place}: its values lie outside of its data") from error
