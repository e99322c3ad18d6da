"""The tensor that holds the samples of a batch, found in what a model or a DataLoader gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .digest import rows

ROWS = 4096
_DEPTH = 4
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
    """Return the tensor that holds the samples, or None."""
    named = dict(keywords)
    for one in args:
        if _is_mapping(one):
            named.update((key, one[key]) for key in one.keys())  # noqa: SIM118 - a mapping of any kind
    for name in _NAMES:
        found = next(tensors(torch, named.get(name)), None)
        if found is not None:
            return found
    return next(tensors(torch, [args, keywords]), None)


def row_digests(torch: Any, data: Any) -> list[str]:
    """Return digests of the samples. Single whole numbers repeat by chance: they tell nothing."""
    if data.is_sparse or (data.numel() == data.shape[0] and not data.is_floating_point()):
        return []
    return rows(torch, data, ROWS)
