"""Walks through plain data: mappings and lists inside each other, as YAML and JSON give them."""

from collections.abc import Callable, Container, Iterator
from typing import Any


def walk(value: Any, path: str = "", skip: Container[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the whole, then each part, with its path such as `spec.volumes[0].name`; nothing below the keys `skip`."""
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in skip:
                yield from walk(inner, f"{path}.{key}".lstrip("."), skip)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from walk(inner, f"{path}[{index}]", skip)


def mapping(value: Any) -> dict[str, Any]:
    """Return a mapping, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the mappings in plain data with their paths, each before those in it."""
    yield from ((where, part) for where, part in walk(value, path) if isinstance(part, dict))


def mapped(value: Any, change: Callable[[str], Any], keys: bool = False) -> Any:
    """Return a copy of plain data with its texts changed, of mappings the `keys` too."""
    if isinstance(value, dict):
        return {mapped(key, change) if keys else key: mapped(inner, change, keys) for key, inner in value.items()}
    if isinstance(value, list):
        return [mapped(inner, change, keys) for inner in value]
    return change(value) if isinstance(value, str) else value
