"""From `yard new script` to a finished run on this machine, and to the file that Flux applies, as printed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import printed
from tests.parts import tree
from tools.image import pin

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
DIGEST = f"sha256:{'1' * 64}"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree.copy(tmp_path_factory.mktemp("road") / "trainyard")


def run(checkout: Path, *words: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *words],
        cwd=where or checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done


def test_the_printed_commands(checkout: Path) -> None:
    """`yard` is that of a copy of the checkout, because a new script is written into it."""
    said = {}
    for line in printed.IN_OTHER_WORDS["tests/agent/test_road.py"]:
        before, _, words = line.rpartition("yard ")
        where = checkout / before.removeprefix("cd ").removesuffix(" && ")
        said[words.split()[0]] = run(checkout, *shlex.split(words), where=where).stdout
    assert "cell overlays/cpu/mine: 2 pods" in said["new"]
    assert "one job of 2 ranks" in said["wiring"]
    assert "will it train: PASS" in said["preflight"]
    assert "all pods ended well" in said["run"]
    directory = checkout / "local/runs/cpu-mine-train"
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 201))
    assert json.loads((directory / "end.json").read_text())["class"] == "done"
    assert "2 checkpoints" in run(checkout, "checkpoint", "verify", str(directory)).stdout
    run(checkout, "matrix", "check")


def test_flux_gets_the_cell(checkout: Path) -> None:
    """The run's file pins the commit that has the Component; the agent's image needs a registry as well."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    pin.pin("toolbox", "registry.example.com/team/toolbox", DIGEST, checkout)
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=all"]):
        subprocess.run([*git, *words], cwd=checkout, check=True, capture_output=True)
    image = f"registry.example.com/team/mine@{DIGEST}"
    run(checkout, "cluster", "run", "new", "cpu/mine", "--cluster", "cpu-demo", "--image", image)
    made = (checkout / "clusters/cpu-demo/runs/cpu-mine-r1.yaml").read_text()
    assert "path: ./overlays/cpu/mine" in made
    assert f"digest: {DIGEST}" in made
