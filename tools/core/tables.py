"""Read the tables that stand in YAML files beside the code."""

from __future__ import annotations

import functools
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
