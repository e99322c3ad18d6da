"""Read the tables in the YAML files beside the code."""

import functools
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core.nested import mapped

# libyaml's parser is 15 times as fast as one in Python.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOOLS = Path(__file__).resolve().parents[1]


@functools.cache
def load(name: str) -> Any:
    """Return a YAML file below `tools/`, such as `facts/eks.yaml`. All callers share it and do not change it."""
    return yaml.load((_TOOLS / name).read_text(encoding="utf-8"), _LOADER)


@functools.cache
def patterns(name: str) -> dict[str, re.Pattern[str]]:
    """Return the patterns of a YAML file by name. Each is a list of alternatives."""
    return {key: re.compile("|".join(rows)) for key, rows in load(name).items()}


def filled(value: Any, names: dict[str, str]) -> Any:
    """Return plain data of a table, keys too, with the values of `names` in place of `{name}`."""
    return mapped(value, lambda text: text.format_map(names), keys=True)
