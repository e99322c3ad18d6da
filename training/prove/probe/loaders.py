"""Passes of DataLoaders, the samples of each batch, and the random state of their workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Place:
    """Where in its DataLoader a batch comes from. All is None where that is unknown."""

    passes: int | None = None
    order: str | None = None
    samples: str | None = None


def current(torch: Any, data: Any) -> Place:
    """Return the place of the batch that the model reads now."""
    return Place()
