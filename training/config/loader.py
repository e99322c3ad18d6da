"""Reads the trainer's configuration: three files, one owner per section, no unknown keys.

A cell's configuration directory holds `model.yaml`, `hardware.yaml` and `cell.yaml` (one ConfigMap each
on a cluster). Each top-level section belongs to exactly one of them, so no value is ever merged or
shadowed. A feature may add `data.yaml`: then that file owns the section `data`, as a whole. Every mistake in
a configuration is one `ConfigError` that names file, key, line and, for a misspelt key, the nearest known
one. `training.config` defines the sections.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from training.config.base import ConfigError, Section
from training.config.config import Config
from training.run import bounds
from training.run.files import read_bounded

FILES = ("model", "hardware", "cell")
DATA = "data"  # a feature's file, and the section that it then owns
OWNER: dict[str, str] = {
    "model": "model",
    "sequence_length": "model",
    "lora": "model",
    "masking": "model",
    "data": "model",
    "train": "model",
    "sample": "model",
    "device": "hardware",
    "parallel": "cell",
    "checkpoint": "cell",
    "nodes": "cell",
    "retry": "cell",
    "upload": "cell",
    "track": "cell",
}


_NEEDED = {
    "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false", "string_type": "a text",
    "tuple_type": "a list",
}  # fmt: skip
_WORDS = {**dict.fromkeys(("yes", "on", "1", "true"), True), **dict.fromkeys(("no", "off", "0", "false"), False)}
_CANDIDATES = 4  # that are tried as the nearest value
LARGEST = 2**20  # bytes of a file; ours have a few hundred


def load(directory: str | Path) -> Config:
    """Read and check the files of a configuration directory.

    Raises:
        ConfigError: a file is missing or wrong.
    """
    directory = Path(directory)
    texts = {}
    for layer in (*FILES, DATA):
        path = directory / f"{layer}.yaml"
        try:
            texts[layer] = (str(path), read_bounded(path, LARGEST, follow=True).decode())
        except FileNotFoundError:
            if layer == DATA:
                continue
            raise ConfigError(
                f"{path}: no such file; a configuration directory holds {', '.join(FILES)}.yaml"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from None
    return load_texts(texts)


def load_texts(texts: Mapping[str, tuple[str, str]]) -> Config:
    """Check a configuration given as `{layer: (file name for messages, YAML text)}`."""
    merged: dict[str, Any] = {}
    lines: dict[tuple[Any, ...], tuple[str, int]] = {}
    for layer in (*FILES, DATA):
        if layer not in texts and layer == DATA:
            continue
        name, text = texts[layer]
        document = _parse(layer, name, text)
        for key, value in document.items():
            merged[key] = _plain(value)
        _collect_lines(document, name, (), lines)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        # A misspelt key is a better message than the missing key it stands for.
        errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ConfigError(_message(errors, texts, lines, merged)) from None


def apply_override(texts: Mapping[str, tuple[str, str]], assignment: str) -> dict[str, tuple[str, str]]:
    """Set one key (`train.steps=50`) in the text of the file that owns it; comments are kept.

    The value is YAML. Raises ConfigError if the assignment has no `=`, if the key is unknown or a section, or if the
    file is not a mapping of sections.
    """
    key, separator, value = assignment.partition("=")
    where = f"--set {assignment}"
    if not separator or not key.strip():
        raise ConfigError(f"{where}: write key=value, for example train.steps=50")
    path = key.strip().split(".")
    _check_key(path, where)
    layer = _owner(path[0], texts)
    name, text = texts[layer]
    _parse(layer, name, text)  # refuses what cannot be changed
    yaml = _yaml()
    document = yaml.load(text) or CommentedMap()
    try:
        bounds.check(_yaml().parse(value))
        parsed = _yaml().load(value) if value.strip() else None
    except bounds.UnboundedError as error:
        raise ConfigError(f"--set {key}: {error}") from None
    except YAMLError:
        doubled = value.replace("'", "''")
        text = f"{key}='{doubled}'"
        quoted = shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'
        raise ConfigError(f"{where}: the value is not YAML; as a text: --set {quoted}") from None
    node = document
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = CommentedMap()
        node = node[part]
    if isinstance(node.get(path[-1]), list):  # its comment would take the end of the next line with it
        node.ca.items.pop(path[-1], None)
    node[path[-1]] = parsed
    out = io.StringIO()
    yaml.dump(document, out)
    return {**texts, layer: (f"{name} (with {where})", out.getvalue())}


def _owner(section: str, texts: Mapping[str, tuple[str, str]]) -> str:
    """Return the layer whose file owns a section."""
    return DATA if section == DATA and DATA in texts else OWNER[section]


def _check_key(path: list[str], where: str) -> None:
    section: Any = Config
    optional = False  # whether the section may be set to null
    for depth, part in enumerate(path):
        if section is None:
            raise ConfigError(f"{where}: {'.'.join(path[:depth])} is a value and has no keys")
        known = section.model_fields
        if part not in known:
            raise ConfigError(
                f"{where}: unknown key {'.'.join(path[: depth + 1])}{_nearest(part, section, path[:depth])}"
            )
        optional = NoneType in get_args(known[part].annotation)
        section = _section_of(known[part].annotation)
    if section is not None and not optional:
        raise ConfigError(f"{where}: {'.'.join(path)} is a section; set one of {', '.join(section.model_fields)}")


def _section_of(annotation: Any) -> Any:
    options = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)


def _section(loc: tuple[Any, ...]) -> Any:
    """The section at a key."""
    section: Any = Config
    for part in loc:
        section = _section_of(section.model_fields[str(part)].annotation)
    return section


def _nearest(part: str, section: Any, prefix: list[str]) -> str:
    initials = [key for key in section.model_fields if part == "".join(word[0] for word in key.split("_"))]  # lr
    close = initials or difflib.get_close_matches(part, list(section.model_fields), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {'.'.join([*prefix, close[0]])}?"
    elsewhere = [
        f"{top}.{part}" for top, field in Config.model_fields.items()
        if (inner := _section_of(field.annotation)) is not None and part in inner.model_fields
    ]  # fmt: skip
    return f"; did you mean {elsewhere[0]}?" if elsewhere else f"; known here: {', '.join(section.model_fields)}"


def nearest_key(name: str) -> str | None:
    """Return the dotted key whose last part is most like `name` (`train.steps` for `stpes`), or None."""
    keys = {
        key: f"{section}.{key}"
        for section, field in Config.model_fields.items()
        if (inner := _section_of(field.annotation)) is not None
        for key in inner.model_fields
    }
    close = difflib.get_close_matches(name.rpartition(".")[2], keys, n=1, cutoff=0.75)
    return keys[close[0]] if close else None


def _nearest_value(error: ErrorDetails, loc: tuple[Any, ...], merged: Mapping[str, Any]) -> str:
    """The value nearest to a wrong one with which its key has no error; empty where there is none."""
    value = _candidate(error, loc) if all(isinstance(part, str) for part in loc) else None  # no element of a list
    for _ in range(_CANDIDATES):
        if value is None:
            return ""
        again = _error_at(loc, _with(merged, loc, value))
        if again is None:
            return f"; nearest value: {str(value).lower() if isinstance(value, bool) else value}"
        value = _candidate(again, loc)
    return ""


def _candidate(error: ErrorDetails, loc: tuple[Any, ...]) -> Any:
    """A value near a wrong one: the bound, the same number in the right type, or the default; None without one."""
    limits, (kind, _, _) = error.get("ctx", {}), error["type"].partition("_")
    for name, step in (("gt", 1), ("ge", 0), ("lt", -1), ("le", 0)):
        if name in limits:  # a float has no neighbour beside a bound that is not its own
            return limits[name] + step if isinstance(limits[name], int) or not step else None
    if kind == "key":
        said = re.search(r"nearest value: (\d+)$", limits["message"])
        return int(said[1]) if said else None
    if kind == "bool" and (word := str(error["input"]).lower()) in _WORDS:
        return _WORDS[word]
    if kind == "literal" and isinstance(error["input"], bool) and "'on'" in limits["expected"]:
        return "on" if error["input"] else "off"
    if kind in ("int", "float"):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return round(float(error["input"])) if kind == "int" else float(error["input"])
    default = _section(loc[:-1]).model_fields[loc[-1]].default
    return default if isinstance(default, (bool, int, float, str)) else None


def _with(merged: Mapping[str, Any], loc: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The configuration with another value at one key."""
    return {**merged, loc[0]: _with(merged[loc[0]], loc[1:], value) if len(loc) > 1 else value}


def _error_at(loc: tuple[Any, ...], merged: Mapping[str, Any]) -> ErrorDetails | None:
    """The first error of a configuration at one key."""
    try:
        Config.model_validate(merged)
    except ValidationError as error:
        return next((one for one in error.errors() if _location(one) == loc), None)
    return None


def _location(error: ErrorDetails) -> tuple[Any, ...]:
    """The key of an error; an error of type `key` names it itself, because it may be in another section.

    For a key with several types, pydantic adds the type that did not fit.
    """
    if error["type"] == "key":
        return tuple(error["ctx"]["key"].split("."))
    loc: tuple[Any, ...] = error["loc"]
    section: Any = Config
    for depth, part in enumerate(loc):
        field = section.model_fields.get(str(part))
        section = _section_of(field.annotation) if field else None
        if section is None:
            return (*loc[: depth + 1], *itertools.takewhile(lambda one: isinstance(one, int), loc[depth + 1 :]))
    return loc


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.allow_duplicate_keys = False
    yaml.width = 4096
    return yaml


@functools.lru_cache(maxsize=64)  # cells share most of their files
def _parse(layer: str, name: str, text: str) -> CommentedMap:
    """Return the mapping of a file; callers share it and only read it. Raises ConfigError."""
    if len(text) > LARGEST:
        raise ConfigError(f"{name}: is larger than {LARGEST >> 20} MiB, the most that is read")
    try:
        bounds.check(_yaml().parse(text))
        document = _yaml().load(text)
    except bounds.UnboundedError as error:
        raise ConfigError(f"{name}:{error.line}: {error}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem or error.context}") from None
    except YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    if document is None:
        document = CommentedMap()
    if not isinstance(document, CommentedMap):
        raise ConfigError(f"{name}:1: the file must be a mapping of sections")
    for key in document:
        line = document.lc.key(key)[0] + 1
        if key not in OWNER:
            raise ConfigError(f"{name}:{line}: unknown key {key}{_nearest(str(key), Config, [])}")
        if OWNER[key] != layer and (key, layer) != (DATA, DATA):
            raise ConfigError(
                f"{name}:{line}: {key} belongs in {OWNER[key]}.yaml, not in {layer}.yaml; each key has one owner"
            )
    return document


def _plain(value: Any) -> Any:
    """ruamel's round-trip types as plain ones, which pydantic can check strictly."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _collect_lines(node: Any, name: str, path: tuple[Any, ...], lines: dict[tuple[Any, ...], tuple[str, int]]) -> None:
    if isinstance(node, CommentedMap):
        for key, value in node.items():
            lines[(*path, key)] = (name, node.lc.key(key)[0] + 1)
            _collect_lines(value, name, (*path, key), lines)
    elif isinstance(node, CommentedSeq):
        for index, value in enumerate(node):
            lines[(*path, index)] = (name, node.lc.item(index)[0] + 1)
            _collect_lines(value, name, (*path, index), lines)


def _message(
    errors: Sequence[ErrorDetails],
    texts: Mapping[str, tuple[str, str]],
    lines: Mapping[tuple[Any, ...], tuple[str, int]],
    merged: Mapping[str, Any],
) -> str:
    error = errors[0]
    loc = _location(error)
    key = ".".join(str(part) for part in loc)
    if error["type"] == "missing":
        name = texts[_owner(str(loc[0]), texts)][0]
        at = lines.get(loc[:-1])
        return f"{name}{f':{at[1]}' if at else ''}: {key} is missing"
    at_name, at_line = next((lines[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in lines), ("", 0))
    where = f"{at_name}:{at_line}: " if at_name else ""
    if error["type"] == "extra_forbidden":
        return f"{where}unknown key {key}{_nearest(str(loc[-1]), _section(loc[:-1]), [str(p) for p in loc[:-1]])}"
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "key":
        return f"{where}{reason}"
    if not loc:
        return f"{texts['cell'][0]} and {texts['model'][0]}: {reason}"
    if error["type"] == "value_error":
        return f"{where}{key}: {reason}"
    if error["type"] == "model_type":
        keys = ", ".join(_section(loc).model_fields)
        return f"{where}{key} is {error['input']!r}: a mapping of these keys is needed: {keys}"
    hint = _nearest_value(error, loc, merged)
    kinds = [_NEEDED.get(one["type"]) or one.get("ctx", {}).get("expected") for one in errors if _location(one) == loc]
    if error["type"] in _NEEDED or len(kinds) > 1:
        reason = f"{'one of these is needed: ' * (len(kinds) > 1)}{', '.join(filter(None, kinds))}"
        reason += " is needed" * (len(kinds) == 1)
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        options = [
            o.strip("'") for o in str(error.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
        ]
        close = difflib.get_close_matches(error["input"].lower(), options, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        if key == "model.architecture" and not close:
            hint = "; to add a family, see docs/extending.md#a-family"
    return f"{where}{key} is {error['input']!r}: {reason[0].lower()}{reason[1:]}{hint}"
