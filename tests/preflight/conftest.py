"""The rendered cells."""

from __future__ import annotations

import pytest

from tools.cells import kustomize, locate
from tools.core import repo
from tools.kube.manifests import Manifests, parse


@pytest.fixture(scope="session")
def renderer() -> kustomize.Renderer:
    """The renderer of the user's commands."""
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    return found


@pytest.fixture(scope="session")
def rendered(renderer: kustomize.Renderer) -> dict[str, str]:
    """The YAML of every cell by its name."""
    return {name: renderer.build(repo.root() / name) for name in locate.cells()}


@pytest.fixture(scope="session")
def cells(rendered: dict[str, str]) -> list[Manifests]:
    """The objects of every cell."""
    return [parse(text, name) for name, text in rendered.items()]
