"""Flux on a Kubernetes of its own. `make test-flux` runs these tests; `make test` passes them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import build as cluster_build
from tests.cluster.sandbox import Unsupported
from tests.flux import build
from tests.flux.fleet import Fleet, git
from tests.flux.world import World
from tools import repo

HERE = Path(__file__).parent
COLD_SECONDS = 3000


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect these tests only when they are asked for by path: they start clusters."""
    asked = (Path(str(word).split("::")[0]).resolve() for word in config.args)
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give time to whatever test comes first, which starts a cluster, and perhaps builds it."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(COLD_SECONDS))


@pytest.fixture(scope="session")
def start(say: cluster_build.Progress) -> Callable[[Path], Fleet]:
    """A function that starts an empty cluster with Flux, which watches a working copy; close it after use."""

    def started(clone: Path) -> Fleet:
        try:
            programs, parts = cluster_build.ensure(say), build.ensure(say)
            return Fleet.start_new(programs, parts, clone)
        except (cluster_build.CannotBuild, Unsupported) as problem:
            pytest.skip(str(problem))

    return started


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A function that clones this repository as it is committed; its branch is main."""

    def made() -> Path:
        root = tmp_path_factory.mktemp("clone") / "trainyard"
        git(repo.root(), "clone", "--quiet", "--no-hardlinks", str(repo.root()), str(root))
        git(root, "checkout", "--quiet", "-B", "main")
        return root

    return made


@pytest.fixture(scope="session")
def world(start: Callable[[Path], Fleet], clone: Callable[[], Path]) -> Iterator[World]:
    """The cluster `cpu-demo`, reconciled from a clone that tests may commit to."""
    root = clone()
    fleet = start(root)
    try:
        world = World(fleet, root, "cpu-demo")
        world.bring_up()
        yield world
    finally:
        fleet.plane.sandbox.close()
