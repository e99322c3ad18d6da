"""Read the tables in the YAML files beside the code."""

import functools
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

# libyaml's parser is 15 times as fast as one in Python.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOOLS = Path(__file__).resolve().parents[1]


@functools.cache
def load(name: str) -> Any:
    """Return the content of a YAML file below `tools/`, such as `facts/eks.yaml`.

    The content is shared by all callers, who do not change it.
    """
    return yaml.load((_TOOLS / name).read_text(encoding="utf-8"), _LOADER)


@functools.cache
def patterns(name: str) -> dict[str, re.Pattern[str]]:
    """Return the patterns of a YAML file by name. Each is a list of alternatives."""
    return {key: re.compile("|".join(rows)) for key, rows in load(name).items()}


def filled(value: Any, names: dict[str, str]) -> Any:
    """Return plain data of a table, keys too, with the values of `names` in place of `{name}`."""
    if isinstance(value, dict):
        return {filled(key, names): filled(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    return value.format_map(names) if isinstance(value, str) else value
