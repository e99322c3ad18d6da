"""The tensor that holds the samples of a batch, or the list of them, found in what a model or a DataLoader gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .digest import Group, digests, grouped, rows

ROWS = 4096
_DEPTH = 4
_IMAGE = 3  # dimensions: channels, height, width
# Names under which models take their data. A mask or a position is data of another kind.
_NAMES = ("input_ids", "pixel_values", "input_values", "input_features", "inputs_embeds", "x", "input", "inputs")


def tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors in nested containers that are data: results of other modules have a gradient."""
    if isinstance(value, torch.Tensor):
        if value.dim() and value.numel() and value.grad_fn is None and not isinstance(value, torch.nn.Parameter):
            yield value
    elif depth < _DEPTH:
        for one in _inner(value):
            yield from tensors(torch, one, depth + 1)


def _inner(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value
    return [value[key] for key in value.keys()] if _is_mapping(value) else ()  # noqa: SIM118 - a mapping of any kind


def _is_mapping(value: Any) -> bool:
    return hasattr(value, "keys") and hasattr(value, "__getitem__")


def main(torch: Any, args: Any, keywords: dict[str, Any]) -> Any:
    """Return the tensor that holds the samples, a list with a tensor for each of them, or None."""
    named = dict(keywords)
    for one in args:
        if _is_mapping(one):
            named.update((key, one[key]) for key in one.keys())  # noqa: SIM118 - a mapping of any kind
    for name in _NAMES:
        found = next(tensors(torch, named.get(name)), None)
        if found is not None:
            return found
    for one in [*args, *keywords.values()]:
        if _is_list_of_samples(torch, one):
            return list(one)
        found = next(tensors(torch, one), None)
        if found is not None:
            return found
    return None


def _is_list_of_samples(torch: Any, value: Any) -> bool:
    """Return whether a list holds one tensor for each sample, such as images of different sizes.

    Tensors of one size may be several views of a batch. Three or more images of one size are not.
    """
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        return False
    if not all(isinstance(one, torch.Tensor) for one in value):
        return False
    first, sizes = value[0], {tuple(one.shape) for one in value}
    alike = {(one.dtype, one.dim()) for one in value} == {(first.dtype, first.dim())}
    return alike and 1 <= first.dim() <= _IMAGE and (len(sizes) > 1 or (first.dim() == _IMAGE and len(value) > 2))


def shape(data: Any) -> list[int]:
    """Return the number of samples, and the shape of one, or of the first of a list."""
    return [len(data), *data[0].shape] if isinstance(data, list) else list(data.shape)


def digest(torch: Any, data: Any) -> str:
    """Return a digest of all samples."""
    return grouped(torch, [Group(data if isinstance(data, list) else [data])])[0]


def row_digests(torch: Any, data: Any) -> list[str]:
    """Return digests of the samples. Single whole numbers repeat by chance: they tell nothing."""
    if isinstance(data, list):
        return digests(torch, data[:ROWS])
    if data.is_sparse or (data.numel() == data.shape[0] and not data.is_floating_point()):
        return []
    return rows(torch, data, ROWS)
