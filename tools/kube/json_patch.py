"""Changes of an object as the operations of a JSON patch (RFC 6902), as kustomize and Flux apply them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.kube.manifests import Object

Keys = tuple[str | int, ...]
Operation = dict[str, Any]
APPEND = "-"


@dataclass(frozen=True)
class Edit:
    """A value that is set, or removed if it is None. The key `-` appends to a list."""

    keys: Keys
    value: Any = None


def value_at(item: Any, keys: Keys) -> Any:
    """Return the value at `keys`, None if there is none."""
    for key in keys:
        if isinstance(item, dict):
            item = item.get(key)
        else:
            item = item[key] if isinstance(item, list) and isinstance(key, int) and key < len(item) else None
    return item


def operation(item: Object, edit: Edit) -> Operation:
    """Return an edit as an operation on `item`. What is missing on its way is added with it."""
    there = next((at for at in range(len(edit.keys)) if value_at(item, edit.keys[: at + 1]) is None), None)
    if there is None:
        change = {"op": "remove"} if edit.value is None else {"op": "replace", "value": edit.value}
        return {**change, "path": _pointer(edit.keys)}
    value = edit.value
    for key in reversed(edit.keys[there + 1 :]):
        value = [value] if key == APPEND else {key: value}
    return {"op": "add", "path": _pointer(edit.keys[: there + 1]), "value": value}


def apply(item: Any, change: Operation) -> None:
    """Carry out an operation of `operation` on plain data, or on data that keeps its comments."""
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:])
    for key in parents:
        item = item[int(key) if isinstance(item, list) else key]
    if isinstance(item, list) and last == APPEND:
        item.append(change["value"])
        return
    at = int(last) if isinstance(item, list) else last
    if change["op"] == "remove":
        del item[at]
    else:
        item[at] = change["value"]


def _pointer(keys: Keys) -> str:
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def difference(old: Any, new: Any, keys: Keys = ()) -> Iterator[Edit]:
    """Yield the edits that make `old` equal to `new`. Lists of another length are replaced as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from difference(old.get(key), new.get(key), (*keys, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from difference(before, after, (*keys, at))
    elif old != new:
        yield Edit(keys, new)
