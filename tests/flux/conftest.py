"""Flux on its own Kubernetes cluster. `make test-flux` runs these tests; `make test` skips them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import build as cluster_build
from tests.cluster.sandbox import Unsupported
from tests.flux import build
from tests.flux.fleet import Fleet, git
from tests.flux.world import World
from tests.parts.gomodule import CannotBuild, Progress
from tools.core import repo


@pytest.fixture(scope="session")
def start(say: Progress) -> Callable[[Path], Fleet]:
    """A function that starts an empty cluster with Flux for a working copy. Close the cluster after use."""

    def started(clone: Path) -> Fleet:
        try:
            modules = (*cluster_build.CLUSTER, "controllers")
            programs, parts = cluster_build.ensure(say, modules), build.ensure(say)
            return Fleet.start_new(programs, parts, clone)
        except (CannotBuild, Unsupported) as problem:
            pytest.skip(str(problem))

    return started


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A function that clones the committed state of this repository as branch main."""

    def made() -> Path:
        root = tmp_path_factory.mktemp("clone") / "trainyard"
        git(repo.root(), "clone", "--quiet", "--no-hardlinks", str(repo.root()), str(root))
        git(root, "checkout", "--quiet", "-B", "main")
        return root

    return made


@pytest.fixture(scope="session")
def world(start: Callable[[Path], Fleet], clone: Callable[[], Path]) -> Iterator[World]:
    """The cluster `cpu-demo`, reconciled from a clone to which tests may commit."""
    root = clone()
    fleet = start(root)
    try:
        world = World(fleet, root, "cpu-demo")
        world.bring_up()
        yield world
    finally:
        fleet.plane.sandbox.close()
