"""buildx, built from its pinned Go module: Debian 12 has no package."""

from __future__ import annotations

from pathlib import Path

from tests.parts import gomodule
from tests.parts.gomodule import Module, Progress

SOURCE = Path(__file__).parent / "binaries/buildx"
VERSION = "0.29.1"
MODULE = Module(
    packages=("github.com/docker/buildx/cmd/buildx",),
    ldflags=f"-s -w -X github.com/docker/buildx/version.Version=v{VERSION}",
)


def ensure(progress: Progress) -> Path:
    """Return the program, and build it the first time (minutes). Raises CannotBuild."""
    return gomodule.ensure(SOURCE, MODULE, gomodule.cache("images"), progress) / "bin/buildx"
