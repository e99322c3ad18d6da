"""The renderer to test with, and clusters made for one test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tools import kustomize, repo

Object = dict[str, Any]


@pytest.fixture(scope="session")
def renderer() -> kustomize.Renderer:
    """The renderer that a user's command takes."""
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: run `make setup`, or install kustomize 5.4 or newer")
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of base/, overlays/ and clusters/ to change."""
    root = tmp_path / "checkout"
    for name in ("base", "overlays", "clusters"):
        shutil.copytree(repo.root() / name, root / name)
    return root


@pytest.fixture(scope="session")
def objects() -> Callable[[str], list[Object]]:
    """A function from rendered YAML to its objects."""

    def parse(text: str) -> list[Object]:
        return [one for one in YAML(typ="safe", pure=True).load_all(text) if one]

    return parse
