"""The types of the fields that the rules read, from shapes.yaml.

The rule `types` reports a value of another type, and no other rule but `schema` checks its object. Whole
schemas are checked by the rule `schema`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.output import short
from tools.core.tables import load

VALUE = 60  # characters of a value in a message


@dataclass(frozen=True)
class Misshape:
    """A value of a type that Kubernetes refuses."""

    path: str
    value: Any
    wanted: str

    @property
    def shown(self) -> str:
        """The fault in one line, such as `spec.replicas: must be an integer, not 'two'`."""
        given = "" if self.value is None else f", not {short(repr(self.value), VALUE)}"
        return f"{self.path}: must be {self.wanted}{given}"


_TYPES = {"text": str, "integer": int, "boolean": bool, "amount": (str, int, float), "port": (str, int)}
_NAMES = {str: "a string in quotes", int: "an integer", bool: "true or false"}


def _typed(shape: Any) -> Any:
    """Return a shape of shapes.yaml with Python's types in place of their names."""
    if isinstance(shape, dict):
        return {key: _typed(inner) for key, inner in shape.items()}
    return [_typed(shape[0])] if isinstance(shape, list) else _TYPES[shape]


_SHAPES = _typed(load("kube/shapes.yaml"))
META, TEMPLATE = _SHAPES["parts"]["metadata"], _SHAPES["parts"]["template"]
OBJECTS, JOBS, RUNTIME, WRAPPERS = (_SHAPES[key] for key in ("objects", "jobs", "runtime", "wrappers"))


def misshapes(value: Any, shape: Any, path: str) -> Iterator[Misshape]:
    """Yield the values that are not of the type in `shape`. Null counts as missing."""
    if isinstance(shape, dict):
        yield from _mapping(value, shape, path)
    elif isinstance(shape, list):
        yield from _list(value, shape[0], path)
    elif not _is(value, shape):
        yield Misshape(path.lstrip("."), value, _NAMES.get(shape, "a number or a string"))


def _mapping(value: Any, shape: dict[str, Any], path: str) -> Iterator[Misshape]:
    if not isinstance(value, dict):
        yield Misshape(path.lstrip("."), value, "a mapping")
        return
    for key, inner in shape.items():
        if key == "*":
            for name, item in value.items():
                if item is not None:
                    yield from misshapes(item, inner, f"{path}.{name}")
            continue
        name = key.removesuffix("!")
        if value.get(name) is not None:
            yield from misshapes(value[name], inner, f"{path}.{name}")
        elif name != key:
            yield Misshape(f"{path}.{name}".lstrip("."), None, "set")


def _list(value: Any, inner: Any, path: str) -> Iterator[Misshape]:
    if not isinstance(value, list):
        yield Misshape(path.lstrip("."), value, "a list")
        return
    for index, item in enumerate(value):
        yield from misshapes(item, inner, f"{path}[{index}]")


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind)
