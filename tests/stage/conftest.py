"""The pod's program as a process, and the sources that it fetches from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts.webserver import WebServer, serving
from tools.core import repo

Run = Callable[..., subprocess.CompletedProcess[str]]


def started(*words: str, **variables: str) -> subprocess.Popen[str]:
    """Start `python -m training.stage` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "training.stage", *words],
        cwd=repo.root(),
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fetched(source: object, target: Path, *options: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    """Fetch a source; return the exit code, the answer and what was said."""
    process = started("fetch", *options, f"--to={target}", "--", str(source), **variables)
    out, err = process.communicate(timeout=300)
    return process.returncode, json.loads(out) if out else {}, err


@pytest.fixture
def site(tmp_path: Path) -> Iterator[WebServer]:
    """A web server of an empty directory, with a small hub below `hub/`."""
    (tmp_path / "site").mkdir()
    with serving(tmp_path / "site") as server:
        yield server
