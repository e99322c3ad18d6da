"""What nodes and the registry need from Debian, unpacked into the cache: nothing is installed here."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.build import cache
from tests.parts import debian
from tests.parts.gomodule import CannotBuild, Progress

NAMES = ("containerd", "runc", "containernetworking-plugins", *debian.IPTABLES, "docker-registry")


class Packages(debian.Packages):
    """A directory that holds the unpacked packages."""

    @property
    def registry(self) -> Path:
        return self.root / "usr/bin/docker-registry"

    @property
    def cni(self) -> Path:
        return self.root / "usr/lib/cni"


def ensure(progress: Progress) -> Packages:
    """Return the packages, fetching and unpacking the missing ones. Raises CannotBuild."""
    try:
        return Packages(debian.ensure(NAMES, cache(), progress).root)
    except debian.Unobtainable as problem:
        raise CannotBuild(str(problem)) from problem
