"""What the generated pages share: their beginnings, and texts without Markdown's own signs."""

from __future__ import annotations

import re
from pathlib import Path

from tools.core import tables


def head(page: str) -> str:
    """Return how a page begins, to the head of its first table."""
    text: str = tables.load(str(Path(__file__).with_name("heads.yaml")))[page]
    return text


def escaped(text: str) -> str:
    """Escape what Markdown would read as HTML, emphasis or a cell's end, but not in `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([*|])", r"\\\1", parts[index].replace("<", "&lt;"))
    for index in range(1, len(parts), 2):
        parts[index] = parts[index].replace("|", r"\|")
    return "".join(parts)
