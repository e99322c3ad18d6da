"""What the engine and its parts need from Debian, unpacked into the cache: nothing is installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.parts import debian
from tests.parts.debian import Packages

NAMES = (
    *("docker.io", "containerd", "runc", "docker-registry", "debootstrap", "slirp4netns", "libslirp0"),
    *debian.IPTABLES,
)


class CannotStart(Exception):
    """The engine cannot be had on this machine. The message says why and what would help."""


def cache() -> Path:
    """Return the directory that is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trainyard" / "images"


def ensure(say: Callable[[str], None]) -> Packages:
    """Return the packages; fetch and unpack them where they are not there yet. Raises CannotStart."""
    try:
        return debian.ensure(NAMES, cache(), say)
    except debian.Unobtainable as problem:
        raise CannotStart(f"the engine: {problem}") from problem
