"""Two rendered cells to plant situations in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.job.world import World
from tools import kustomize, repo
from tools.cell import Manifests, parse

KINDS = {"cpu/llama-tiny": "m5.xlarge", "p5/llama-3-1-8b": "p5en.48xlarge", "g5/llama-2-7b": "g5.48xlarge"}
NewWorld = Callable[..., World]


@pytest.fixture(scope="session")
def rendered() -> dict[str, Manifests]:
    """The cells by name."""
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: run `make setup`, or install kustomize 5.4 or newer")
    return {name: parse(renderer.build(repo.root() / "overlays" / name), name) for name in KINDS}


@pytest.fixture
def world(rendered: dict[str, Manifests]) -> NewWorld:
    """A maker of healthy jobs: `world("p5/llama-3-1-8b", nodes=3)`."""

    def make(name: str = "cpu/llama-tiny", nodes: int | None = None) -> World:
        return World(rendered[name], KINDS[name], nodes)

    return make
