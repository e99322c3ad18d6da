"""The schemas, and the rendered cells."""

from __future__ import annotations

import sys

import pytest

from tools.cells import kustomize, locate
from tools.core import repo
from tools.core.errors import UserError
from tools.kube import schemas
from tools.kube.manifests import Manifests, parse


def note(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def known() -> schemas.Schemas:
    """The schemas, built if they are not there yet."""
    try:
        return schemas.ensure(repo.root(), note)
    except UserError as problem:
        pytest.skip(f"{problem.message}: connect to the network once, or run `{schemas.COMMAND}` elsewhere")


@pytest.fixture(scope="session")
def rendered() -> dict[str, str]:
    """Every cell's YAML by the cell's name, rendered once."""
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: run `make setup`, or install kustomize 5.4 or newer")
    return {name: renderer.build(repo.root() / name) for name in locate.cells()}


@pytest.fixture(scope="session")
def cells(rendered: dict[str, str]) -> list[Manifests]:
    """Every cell's objects."""
    return [parse(text, name) for name, text in rendered.items()]
