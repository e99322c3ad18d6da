"""The configuration reference: each key, from the schema."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from docs.generated.markdown import escaped, head
from docs.links import slug
from training.config import OWNER, Config
from training.config.base import LARGEST, Section

_HEAD = ["| key | type | default | meaning |", "|---|---|---|---|"]


def page() -> str:
    """Return docs/reference/configuration.md."""
    schema = _schema()
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


def _schema() -> dict[str, Any]:
    """Return the configuration's JSON schema. The docstring below each key is its description.

    pydantic's use_attribute_docstrings does the same, but reads the sources in every process of a job.
    """
    schema = Config.model_json_schema()
    for section in (Config, *_sections(Section)):
        shape = schema if section is Config else schema["$defs"].get(section.__name__, {"properties": {}})
        for key, text in docstrings(section).items():
            if key in shape["properties"]:
                shape["properties"][key]["description"] = text
    return schema


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    for below in section.__subclasses__():
        yield below
        yield from _sections(below)


def docstrings(section: type[Section]) -> dict[str, str]:
    """Return the strings below the keys of a section and of those that it extends."""
    found: dict[str, str] = {}
    for parent in reversed(section.__mro__[: section.__mro__.index(Section)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(tree, ast.ClassDef)
        for node, below in itertools.pairwise(tree.body):
            match node, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[key] = inspect.cleandoc(text)
    return found


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
