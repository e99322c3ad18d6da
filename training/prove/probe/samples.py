"""The tensor that holds the samples of a batch, or the list of them, found in what a model or a DataLoader gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .digest import Group, digests, grouped, rows

ROWS = 4096
_DEPTH = 4
_IMAGE = 3  # dimensions: channels, height, width
# Names under which models take their data, and those of data of another kind: a mask may be the same on all ranks.
_NAMES = ("input_ids", "pixel_values", "input_values", "input_features", "inputs_embeds", "x", "input", "inputs")
_ASIDE = re.compile(r"mask|position_id|token_type|(?:length|label|target)s?$", re.IGNORECASE)


def tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors in nested containers that are data: results of other modules have a gradient."""
    if isinstance(value, torch.Tensor):
        if value.dim() and value.numel() and value.grad_fn is None and not isinstance(value, torch.nn.Parameter):
            yield value
    elif depth < _DEPTH:
        inner = value if isinstance(value, (list, tuple)) else _data_first(_held(torch, value))
        for one in inner:
            yield from tensors(torch, one, depth + 1)


def _held(torch: Any, value: Any) -> dict[Any, Any]:
    """Return what a mapping of any kind holds, or the tensors that are attributes of an object, such as a dataclass."""
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118
    plain = not isinstance(value, (type, torch.Tensor, torch.nn.Module))
    held = getattr(value, "__dict__", None) if plain else None
    return {name: one for name, one in held.items() if isinstance(one, torch.Tensor)} if held else {}


def _data_first(held: dict[Any, Any]) -> list[Any]:
    return [held[name] for name in sorted(held, key=lambda name: bool(_ASIDE.search(str(name))))]


def main(torch: Any, args: Any, keywords: dict[str, Any]) -> Any:
    """Return the tensor that holds the samples, a list with a tensor for each of them, or None."""
    named = dict(keywords)
    for one in args:
        named.update(_held(torch, one))
    for name in _NAMES:
        found = next(tensors(torch, named.get(name)), None)
        if found is not None:
            return found
    found = list(_candidates(torch, [*args, *_data_first(keywords)]))
    return next((one for one in found if isinstance(one, list) or one.dtype != torch.bool), found[0] if found else None)


def _candidates(torch: Any, values: list[Any]) -> Iterator[Any]:
    for one in values:
        if _is_list_of_samples(torch, one):
            yield list(one)
        else:
            yield from tensors(torch, one)


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


def beside(torch: Any, data: Any, args: Any, keywords: dict[str, Any]) -> str:
    """Return a digest of the other tensors of a call, an empty text without any, or where one cannot be read."""
    main = {id(one) for one in (data if isinstance(data, list) else [data])}
    others = [one for one in tensors(torch, [args, keywords]) if id(one) not in main]
    try:
        return grouped(torch, [Group(others)])[0] if others else ""
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AttributeError):
        return ""


def row_digests(torch: Any, data: Any) -> list[str]:
    """Return digests of the samples. Single whole numbers repeat by chance: they tell nothing."""
    if isinstance(data, list):
        return digests(torch, data[:ROWS])
    if data.is_sparse or (data.numel() == data.shape[0] and not data.is_floating_point()):
        return []
    return rows(torch, data, ROWS)
