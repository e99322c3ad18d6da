"""Builds Prometheus and promtool from their pinned Go module, without service discovery."""

from __future__ import annotations

from pathlib import Path

from tests.parts import gomodule
from tests.parts.gomodule import Module, Progress

SOURCE = Path(__file__).parent / "binaries/prometheus"
_COMMANDS = "github.com/prometheus/prometheus/cmd"
# Without the clients of all clouds, which discover targets, the build is much shorter.
MODULE = Module(packages=(f"{_COMMANDS}/prometheus", f"{_COMMANDS}/promtool"), tags=("remove_all_sd",))


def ensure(progress: Progress) -> Path:
    """Return the directory of the programs. Building them takes 3 to 10 minutes, once. Raises CannotBuild."""
    return gomodule.ensure(SOURCE, MODULE, gomodule.cache("monitoring"), progress) / "bin"


if __name__ == "__main__":
    print(ensure(print))
