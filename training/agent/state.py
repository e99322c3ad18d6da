"""A script's state as JSON and tensors: what a checkpoint stores, without pickle.

A state is made of tensors, numbers, texts, None, small numpy arrays, and lists, tuples and dicts of these.
Each tensor gets a name, which is its place in the state; the rest becomes JSON:

    a list [...]                  ["list", [...]]
    a tuple (...)                 ["tuple", [...]]
    a dict {key: value, ...}      ["dict", [[key, value], ...]]
    a tensor                      ["tensor", name]
    a numpy array                 ["array", dtype, shape, [numbers]]
    nan, inf, -inf                ["float", "nan"]
    None, a truth value, a number, a text: as in JSON
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from training.checkpoint.errors import CheckpointError

LARGEST_ARRAY = 65536  # values of a numpy array; a tensor is the better form for more
_DEEPEST = 100
_NUMBERS = "biuf"  # numpy's kinds: truth values, integers, floats


def split(state: Any, tensors: dict[str, Any], name: str) -> Any:
    """Return the JSON of a state, and put its tensors into `tensors`, with `name` in front of their names.

    Raises:
        CheckpointError: a value is of another type, or the state is nested too deeply.
    """
    return _split(state, tensors, name, 0)


def _split(value: Any, tensors: dict[str, Any], name: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise CheckpointError(f"{name[:80]}...: is nested more than {_DEEPEST} times")
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", str(value)]
    if isinstance(value, Mapping):
        pairs = [[_key(key, name), _split(one, tensors, f"{name}/{key}", depth + 1)] for key, one in value.items()]
        return ["dict", pairs]
    if isinstance(value, (list, tuple)):
        items = [_split(one, tensors, f"{name}/{at}", depth + 1) for at, one in enumerate(value)]
        return ["tuple" if isinstance(value, tuple) else "list", items]
    return _special(value, tensors, name)


def _special(value: Any, tensors: dict[str, Any], name: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if name in tensors:
            raise CheckpointError(f"{name}: two values have this name")
        tensors[name] = value
        return ["tensor", name]
    if type(value).__module__ == "numpy":
        if getattr(value, "ndim", None) == 0:
            return _split(value.item(), tensors, name, 0)
        if value.dtype.kind in _NUMBERS and value.size <= LARGEST_ARRAY:
            numbers = [_split(one, tensors, name, 0) for one in value.ravel().tolist()]
            return ["array", str(value.dtype), list(value.shape), numbers]
        raise CheckpointError(f"{name}: an array of {value.size} {value.dtype}; give it as a tensor")
    if isinstance(value, (int, str)):  # of a class of its own, such as an enumeration
        return int(value) if isinstance(value, int) else str.__str__(value)
    raise CheckpointError(
        f"{name}: a value of type {type(value).__name__} cannot be saved; give tensors, numbers, texts, "
        "lists and dicts, or write the file yourself with write=..."
    )


def _key(key: Any, name: str) -> Any:
    if key is None or type(key) in (bool, int, str):
        return key
    raise CheckpointError(f"{name}: a key of type {type(key).__name__}; keys are texts and whole numbers")


def join(value: Any, tensor: Callable[[str], Any]) -> Any:
    """Return the state of a JSON value that `split` returned; `tensor` gives the tensor of a name.

    Raises:
        CheckpointError: it is something else.
    """
    if not isinstance(value, list):
        return value
    try:
        return _join(value[0], value[1:], tensor)
    except (IndexError, TypeError, ValueError):
        raise CheckpointError("the saved state is damaged") from None


def _join(kind: Any, rest: list[Any], tensor: Callable[[str], Any]) -> Any:
    if kind == "dict":
        return {key: join(one, tensor) for key, one in rest[0]}
    if kind in ("list", "tuple"):
        items = [join(one, tensor) for one in rest[0]]
        return items if kind == "list" else tuple(items)
    if kind == "tensor":
        return tensor(str(rest[0]))
    if kind == "float":
        return float(rest[0])
    if kind == "array":
        import numpy

        kind_of_number = numpy.dtype(str(rest[0]))
        if kind_of_number.kind in _NUMBERS:
            return numpy.array([join(one, tensor) for one in rest[2]], dtype=kind_of_number).reshape(rest[1])
    raise ValueError(kind)
