"""Read the tables of facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

# libyaml's parser is 15 times as fast as one in Python.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(name: str) -> Any:
    """Return the content of a YAML file of this package."""
    return yaml.load(Path(__file__).with_name(name).read_text(encoding="utf-8"), _LOADER)
