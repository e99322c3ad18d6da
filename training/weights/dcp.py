"""The tensors of a DCP directory, read by rows, and those of the model among them."""

from __future__ import annotations

from pathlib import Path

import torch

from training.checkpoint.dcp import Piece, Tensor, read_index, read_piece
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import rows_of
from training.checkpoint.tensors import DTYPES
from training.weights.errors import WeightsError
from training.weights.tensors import Kind

TABLES = ("model.embed_tokens.weight", "bert.embeddings.word_embeddings.weight")  # of words, in published names


class DcpTensors:
    """The tensors of a DCP directory; its pickles are never executed (`training.checkpoint.dcp`)."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.place = directory, str(directory)
        self._index = read_index(directory)
        self.kinds = {name: Kind(tensor.dtype, tensor.shape) for name, tensor in self._index.items()}
        self._last: tuple[Piece, torch.Tensor] | None = None  # rows are asked for in order

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
        if self._last is None or self._last[0] != piece:
            self._last = piece, self._read(tensor, piece)
        return self._last[1]

    def _read(self, tensor: Tensor, piece: Piece) -> torch.Tensor:
        dtype, values = DTYPES[tensor.dtype], read_piece(self._directory, tensor, piece)
        if 0 in piece.sizes:
            return torch.empty(piece.sizes, dtype=dtype)
        try:
            flat = torch.frombuffer(bytearray(values.data), dtype=dtype)
            return flat.as_strided(piece.sizes, values.strides, values.first)
        except (RuntimeError, ValueError) as error:
            place = f"{self._directory.name}/{piece.file}: the piece at byte {piece.first:,}"
            raise CheckpointError(f"{place}: its values lie outside of its data") from error


class DcpModel:
    """The model's tensors in a DCP directory, by their names in safetensors files.

    A trainer saves its model beside the optimizer and puts a name before all of its tensors, such as `model.`. It is
    found by the table of words.

    Raises:
        WeightsError: no tensor is a table of words, or several are.
    """

    def __init__(self, directory: Path) -> None:
        self._all, self.place = DcpTensors(directory), str(directory)
        before = {
            name[: -len(table)]
            for name in self._all.kinds for table in TABLES if name == table or name.endswith(f".{table}")
        }  # fmt: skip
        if len(before) != 1:
            found = f"of {', '.join(sorted(before))}" if before else f"; no tensor is named {' or '.join(TABLES)}"
            raise WeightsError(f"{directory}: DCP holds {'several models' if before else 'no model'} {found}"[:400])
        (self._before,) = before
        self.kinds = {
            name[len(self._before) :]: kind for name, kind in self._all.kinds.items() if name.startswith(self._before)
        }

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        self._all.read(f"{self._before}{name}", row, out)
