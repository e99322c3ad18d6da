"""The configuration reference: each key, from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generated.markdown import escaped, head
from docs.links import slug
from training.config import OWNER, Config
from training.config.base import LARGEST

_HEAD = ["| key | type | default | meaning |", "|---|---|---|---|"]


def page() -> str:
    """Return docs/reference/configuration.md."""
    schema = Config.model_json_schema()
    files = {
        "model": "`overlays/model/<model>/model.yaml`",
        "hardware": "`overlays/hardware/<hardware>/hardware.yaml`",
        "cell": "`overlays/matrix.yaml`, which `yard matrix sync` writes into the cell's `cell.yaml`",
    }
    owners = "\n".join(
        f"| {', '.join(f'[`{key}`](#{slug(key)})' for key in OWNER if OWNER[key] == owner)} | {path} |"
        for owner, path in files.items()
    )
    parts = [head("configuration") + owners]
    for key, field in schema["properties"].items():
        parts += _section(schema, key, field, key not in schema["required"], OWNER[key])
    return "\n\n".join(parts) + "\n"


def _section(schema: dict[str, Any], path: str, field: dict[str, Any], optional: bool, owner: str) -> Iterator[str]:
    """Yield the Markdown of one section, or of a key that stands outside of one, and of its subsections."""
    shape = _shape(schema, field)
    yield f"{'#' * (2 + path.count('.'))} {path}"
    note = f"File: `{owner}.yaml`. " + ("Optional." if optional else "Required.")
    if "properties" not in shape:
        yield f"{note} {_sentence(field)}"
        yield "\n".join([*_HEAD, _row(schema, path, field, not optional)])
        return
    described = "\n\n".join(map(escaped, shape.get("description", "").split("\n\n")))
    own = _sentence(field)
    yield "\n\n".join(filter(None, (note, own if own != described else "", described)))
    keys = {f"{path}.{name}": (inner, name in shape.get("required", ())) for name, inner in shape["properties"].items()}
    plain = {name: entry for name, entry in keys.items() if "properties" not in _shape(schema, entry[0])}
    if plain:
        yield "\n".join([*_HEAD, *(_row(schema, name, *entry) for name, entry in plain.items())])
    for name, (inner, required) in keys.items():
        if name not in plain:
            yield from _section(schema, name, inner, not required, owner)


def _row(schema: dict[str, Any], path: str, field: dict[str, Any], required: bool) -> str:
    default = field.get("default")
    shown = "required" if required else "not set" if default is None else f"`{_yaml(default)}`"
    return f"| `{path.rpartition('.')[2]}` | {_type(schema, field)} | {shown} | {_sentence(field)} |"


def _shape(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a field refers to, without the `null` of an optional one."""
    choices: list[dict[str, Any]] = field.get("anyOf", [field])
    shape = next(choice for choice in choices if choice.get("type") != "null")
    name: str = shape.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schema["$defs"][name] if name else shape
    return found


def _type(schema: dict[str, Any], field: dict[str, Any]) -> str:
    kinds = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    if len(kinds) > 1:
        return " or ".join(_type(schema, kind) for kind in kinds)
    shape = _shape(schema, field)
    if "enum" in shape:
        return " or ".join(f"`{value}`" for value in shape["enum"])
    if "const" in shape:
        return f"`{shape['const']}`"
    if shape["type"] == "array":
        return f"list of {_type(schema, shape['items'])}"
    name = {
        "string": "text",
        "integer": "integer",
        "number": "number",
        "boolean": "true or false",
        "object": "mapping",
    }
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    words |= {
        "exclusiveMinimum": "above",
        "minimum": "at least",
        "exclusiveMaximum": "below",
        "maximum": "at most",
    }
    shown = {key: word for key, word in words.items() if shape.get(key, LARGEST) != LARGEST}
    limits = [f"{word} {shape[key]:g}" for key, word in shown.items()]
    return ", ".join([name[shape["type"]], *limits])


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "[]" if value == [] else str(value)


def _sentence(field: dict[str, Any]) -> str:
    if not field.get("description"):
        return ""
    return escaped(" ".join(field["description"].split()))
