"""The types of the fields that the rules read, from shapes.yaml.

The rule `types` reports a value of another type. The other rules check the object as `well_typed` returns it.
Whole schemas are checked by the rule `schema`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.output import short
from tools.core.tables import load

CONTAINER = re.compile(r"ontainers\[[0-9]+\]$")
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
OBJECTS, JOBS, RUNTIME, RUN, WRAPPERS = (_SHAPES[key] for key in ("objects", "jobs", "runtime", "run", "wrappers"))


def misshapes(value: Any, shape: Any, path: str) -> Iterator[Misshape]:
    """Yield the values that are not of the type in `shape`. Null counts as missing, but a named part must be there."""
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
                if item is not None or isinstance(inner, dict):
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


_LOST = object()


def well_typed(value: Any, shape: Any, path: str, lost: list[str]) -> Any:
    """Return a copy in which the values of a wrong type are converted, such as `1` to `"1"`.

    What cannot be converted is left out, with what requires it, and its path is added to `lost`.
    """
    found = _well_typed(value, shape, path, lost)
    return None if found is _LOST else found


def _well_typed(value: Any, shape: Any, path: str, lost: list[str]) -> Any:
    if isinstance(shape, dict) and isinstance(value, dict):
        return _well_typed_mapping(value, shape, path, lost)
    if isinstance(shape, list) and isinstance(value, list):
        items = [_well_typed(item, shape[0], f"{path}[{at}]", lost) for at, item in enumerate(value)]
        return [item for item in items if item is not _LOST]
    if not isinstance(shape, dict | list):
        if _is(value, shape):
            return value
        if shape is str and isinstance(value, bool | int | float):
            return str(value).lower() if isinstance(value, bool) else str(value)
        if shape is int and isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            return int(value)
        if shape is bool and value in ("true", "false"):
            return value == "true"
    lost.append(path.lstrip("."))
    return _LOST


def _well_typed_mapping(value: dict[str, Any], shape: dict[str, Any], path: str, lost: list[str]) -> Any:
    parts = isinstance(shape.get("*"), dict)  # a part that is null is left out
    result = {name: item for name, item in value.items() if item is not None or not parts}
    named = {key.removesuffix("!"): (inner, key.endswith("!")) for key, inner in shape.items() if key != "*"}
    if "*" in shape:
        named |= {name: (shape["*"], False) for name, item in value.items() if item is not None}
    for name, (inner, required) in named.items():
        if value.get(name) is not None:
            result[name] = _well_typed(value[name], inner, f"{path}.{name}", lost)
        if result.get(name) is None and name == "name" and CONTAINER.search(path):
            result[name] = "unnamed"
        if result.get(name) is None and required:
            lost.append(f"{path}.{name}".lstrip("."))
        if result.get(name) is _LOST or (result.get(name) is None and required):
            if required:
                return _LOST
            del result[name]
    return result
