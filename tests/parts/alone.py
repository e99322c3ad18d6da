"""One process at a time: the workers of pytest-xdist share the caches of the checkout and of the user."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Hold the lock beside a place of a cache, which the caller fills if it is missing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
