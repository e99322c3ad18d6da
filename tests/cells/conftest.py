"""The renderers to test with, and copies of the manifests to change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.parts import renderers
from tools.cells import kustomize, matrix
from tools.core import repo

NONE_HERE = "no kustomize or kubectl on PATH: install kustomize 5.4 or kubectl 1.31, or newer"
Objects = dict[tuple[str, str], dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give more time to the tests that may have to build the renderers."""
    for item in items:
        if "builder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(900))


BUILT = [pytest.param(version, marks=pytest.mark.long) for version in renderers.VERSIONS]


@pytest.fixture(scope="session", params=["found", *BUILT])
def builder(request: pytest.FixtureRequest) -> kustomize.Renderer:
    """Each renderer in turn: the one of a user's command, the oldest supported, the newest."""
    if request.param == "found":
        found = kustomize.find(repo.root())
        if found is None:
            pytest.skip(NONE_HERE)
        return found
    program = renderers.built(request.param)
    return kustomize.Renderer((str(program), "build"), request.param, "built for the tests")


@pytest.fixture(scope="session")
def renderer() -> kustomize.Renderer:
    """The renderer of a user's command."""
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip(NONE_HERE)
    return found


FIRST_CELL = ("hardware/cpu", "model/llama-tiny", "cpu/llama-tiny", "images")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of base/pytorchjob and of the first cell, with a matrix of that one cell."""
    root = tmp_path / "checkout"
    for name in ("base/pytorchjob", *(f"overlays/{part}" for part in FIRST_CELL)):
        shutil.copytree(repo.root() / name, root / name)
    text = (repo.root() / matrix.MATRIX).read_text(encoding="utf-8")
    first, found, _ = text.partition("    llama-tiny-lora:\n")  # the second model of the first hardware
    assert found
    cells = first[first.index("\ncells:\n") + 1 :]
    (root / matrix.MATRIX).write_text(cells, encoding="utf-8")
    return root


@pytest.fixture
def whole_checkout(tmp_path: Path) -> Path:
    """A copy of base/pytorchjob and overlays/."""
    root = tmp_path / "checkout"
    for name in ("base/pytorchjob", "overlays"):
        shutil.copytree(repo.root() / name, root / name)
    return root


@pytest.fixture(scope="session")
def objects() -> Callable[[str], Objects]:
    """A function from rendered YAML to its objects by (kind, name)."""

    def parse(text: str) -> Objects:
        documents = YAML(typ="safe", pure=True).load_all(text)
        return {(one["kind"], one["metadata"]["name"]): one for one in documents}

    return parse
