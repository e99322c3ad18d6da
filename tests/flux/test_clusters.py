"""The committed state of this repository reconciles on an empty API server: each cluster and Kustomization.

This file runs first, because the others commit to the clone of cpu-demo.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.kube import condition
from tests.flux.fleet import KIND, Fleet
from tests.flux.world import World
from tests.parts.upstream import MODULES
from tools.cluster import cluster_env, platform
from tools.gitops import check


def test_cpu_demo_is_up_and_the_platform_came_before_the_runs(world: World) -> None:
    """The operator runs the job of the example run, with the claim bound and the facts filled in."""
    assert world.runs_said & {"DependencyNotReady"}
    # The reason is ArtifactFailed until the source is served.
    assert world.runs_said <= {"DependencyNotReady", "ArtifactFailed", "None"}
    assert world.before_platform <= {"flux-system", "plugins", "storage", "runs", *MODULES}
    _assert_whole(world)


@pytest.mark.parametrize("name", ["gpu", "gpu-hyperpod", "trn1"])
def test_every_kustomization_is_ready(name: str, start: Callable[[Path], Fleet], clone: Callable[[], Path]) -> None:
    root = clone()
    fleet = start(root)
    try:
        world = World(fleet, root, name)
        world.bring_up()
        _assert_whole(world)
    finally:
        fleet.plane.sandbox.close()


def _assert_whole(world: World) -> None:
    files = check.run_files(world.root, world.cluster)
    parts = {part for part in platform.PARTS if (world.cluster / part).is_dir()}
    plugins = (world.cluster / "plugins/kustomization.yaml").read_text(encoding="utf-8")
    names = {item["metadata"]["name"] for item in world.fleet.kube.list(KIND)}
    fetched = {name for name in MODULES if f"base/plugins/{name}/flux" in plugins}
    assert names == {"flux-system", "runs"} | parts | fetched | {run.name for run in files}
    team = cluster_env.read(world.cluster / "cluster.env")["TEAM_NAMESPACE"].value
    assert files
    for run in files:
        job = world.job(run.name)
        assert (job["metadata"]["name"], job["metadata"]["namespace"]) == (run.job, team)
        assert condition(job, "Running") is not None
    claim = world.fleet.kube.get("persistentvolumeclaim", "trainyard", team)
    assert claim is not None
    assert claim["status"]["phase"] == "Bound"
