"""Mixtral's experts: files hold three matrices for each expert, the model two tensors for all of them.

The names are those of mistralai/Mixtral-8x7B-v0.1's safetensors index, which other tools read; the order of
the parts is transformers' (`conversion_mapping.py`, `mixtral`).
"""

from __future__ import annotations

import re

import torch

from training.checkpoint.tensors import DTYPES
from training.weights.errors import WeightsError
from training.weights.tensors import Kind, Tensors

_FILES, _MODEL = ".block_sparse_moe.", ".mlp."
_EXPERT = re.compile(r"(?P<layer>[\w.]{1,200})\.block_sparse_moe\.experts\.(?P<expert>\d{1,4})\.w1\.weight")
# The parts of a tensor of the model along the rows of one expert.
_PARTS = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}


def file_names(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, slice]]:
    """The tensors that hold a parameter in files: each expert's number and rows; empty for others."""
    layer, found, last = name.partition(f"{_MODEL}experts.")
    if not found:
        return {}
    parts = _PARTS[last]
    rows = shape[1] // len(parts)
    return {
        f"{layer}{_FILES}experts.{expert}.{part}.weight": (expert, slice(at * rows, (at + 1) * rows))
        for expert in range(shape[0])
        for at, part in enumerate(parts)
    }


def file_name(name: str) -> str:
    """The name in files of a parameter that is stored whole: the router is beside the experts there."""
    return name.replace(f"{_MODEL}gate.weight", f"{_FILES}gate.weight")


def joined(stored: Tensors) -> Tensors:
    """The tensors by the model's names; the same object if files have no experts of their own.

    Raises:
        WeightsError: an expert is missing, or has another shape or dtype than the others.
    """
    if not any(_FILES in name for name in stored.kinds):
        return stored
    return _Joined(stored)


class _Joined:
    """Tensors of which an expert's row is read from its matrices."""

    def __init__(self, stored: Tensors) -> None:
        self._stored, self.place = stored, stored.place
        self._parts: dict[str, dict[str, tuple[int, slice]]] = {}
        experts: dict[str, int] = {}
        for name in stored.kinds:
            if match := _EXPERT.fullmatch(name):
                experts[match["layer"]] = max(experts.get(match["layer"], 0), int(match["expert"]) + 1)
        self.kinds: dict[str, Kind] = {}
        for layer, count in experts.items():
            for last in _PARTS:
                self._add(f"{layer}{_MODEL}experts.{last}", count)
        used = {part for parts in self._parts.values() for part in parts}
        self._names = {name.replace(_FILES, _MODEL): name for name in stored.kinds if name not in used}
        self.kinds |= {name: stored.kinds[other] for name, other in self._names.items()}

    def _add(self, name: str, count: int) -> None:
        parts = _PARTS[name.rpartition(".")[2]]
        first = self._stored.kinds.get(next(iter(file_names(name, (1, len(parts), 1)))))
        if first is None or len(first.shape) != 2:
            raise WeightsError(f"{self.place}: the first expert of {name} is missing or is not a matrix")
        shape = (count, first.shape[0] * len(parts), first.shape[1])
        self._parts[name] = file_names(name, shape)
        for part in self._parts[name]:
            if self._stored.kinds.get(part) != first:
                raise WeightsError(f"{self.place}: tensor {part} is missing or unlike that of expert 0")
        self.kinds[name] = Kind(first.dtype, shape)

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        if name not in self._parts:
            self._stored.read(self._names[name], row, out)
            return
        for part, (expert, rows) in self._parts[name].items():
            if row <= expert < row + out.shape[0]:
                self._stored.read(part, 0, out[expert - row, rows])


def row_of(tensors: Tensors, name: str, row: int) -> torch.Tensor:
    """One row of a tensor on the CPU, in its own dtype."""
    kind = tensors.kinds[name]
    out = torch.empty((1, *kind.shape[1:]), dtype=DTYPES[kind.dtype])
    tensors.read(name, row, out)
    return out[0]
