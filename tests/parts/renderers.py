"""The oldest and the newest kustomize that are supported, built when a test first asks for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.cells import kustomize
from tools.core import repo
from tools.core.go_build import Unusable

OLDEST = "5.4.2"  # what kubectl 1.31 contains
VERSIONS = (OLDEST, kustomize.VERSION)


def built(version: str) -> Path:
    """Return the program of this version. Skips the test where it cannot be built."""
    program = kustomize.place(repo.root(), version)
    try:
        if not program.exists():
            kustomize.go_install(repo.root(), _note, version)
    except Unusable as reason:
        pytest.skip(f"kustomize {version} is not available ({reason}): install Go 1.24 or newer")
    return program


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
