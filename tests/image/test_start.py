"""What an image's configuration says, from the engine or from the registry, with a stand-in for docker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.core.errors import UserError
from tools.image.engine import Engine
from tools.image.start import start_of

CONFIG = {"Entrypoint": ["/entry"], "Cmd": ["torchrun", "a.py"], "Env": ["A=b=c", "PATH=/bin"]}


def docker(tmp_path: Path, local: Any, remote: Any) -> Engine:
    """Return an engine that knows the image locally, at its registry, or not at all (None)."""
    program = tmp_path / "docker"
    for name, answer in (("image", local), ("buildx", remote)):
        (tmp_path / name).write_text("" if answer is None else json.dumps(answer))
    found = f"{tmp_path}/$1"
    program.write_text(
        f'#!/bin/sh\nif [ -s {found} ]; then cat {found}; else echo "no such manifest" >&2; exit 1; fi\n'
    )
    program.chmod(0o755)
    return Engine(str(program))


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        ([{"Config": CONFIG}], None),
        (None, {"architecture": "amd64", "config": CONFIG}),
        (None, {"linux/arm64": {"config": {}}, "linux/amd64": {"config": CONFIG}}),
    ],
)
def test_entry_point_command_and_variables_are_read(tmp_path: Path, local: Any, remote: Any) -> None:
    found = start_of(docker(tmp_path, local, remote), "registry.example.com/team/trainer:1")
    assert (found.entrypoint, found.command) == (["/entry"], ["torchrun", "a.py"])
    assert found.variables == {"A": "b=c", "PATH": "/bin"}


def test_an_image_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such manifest"):
        start_of(docker(tmp_path, None, None), "registry.example.com/team/trainer:1")
    with pytest.raises(UserError, match="not an image"):
        start_of(docker(tmp_path, None, [1]), "registry.example.com/team/trainer:1")
