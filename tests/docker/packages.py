"""The Debian packages of the engine and its parts, unpacked into the cache and not installed."""

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
    """The engine cannot run on this machine. The message has the reason and a fix."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trainyard" / "images"


def ensure(say: Callable[[str], None]) -> Packages:
    """Return the packages; download and unpack missing ones. Raises CannotStart."""
    try:
        return debian.ensure(NAMES, cache(), say)
    except debian.Unobtainable as problem:
        raise CannotStart(f"the engine: {problem}") from problem
