"""Rendered cells to plant situations in, a stand-in for the cluster, and `yard job` as a function."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from tests.job.world import World
from tools.cells import kustomize
from tools.cli import invoke
from tools.core import repo
from tools.job.snapshot import kinds, many
from tools.job.snapshot.snapshot import PREVIOUS
from tools.kube.manifests import Manifests, parse
from tools.workload import kinds as workloads
from tools.workload.workload import Workload

KINDS = {"cpu/llama-tiny": "m5.xlarge", "p5/llama-3-1-8b": "p5en.48xlarge", "g5/llama-2-7b": "g5.48xlarge"}
NewWorld = Callable[..., World]
STAND_IN = Path(__file__).with_name("kubectl.py")
Cluster = Callable[[World], Path]


def workload(job: dict[str, Any]) -> Workload:
    """A job by its kind."""
    found = workloads.of(job)
    assert found is not None
    return found


class Yard:
    """`yard job` in this process: `yard("logs", code=3)` returns what the command prints."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str, code: int = 0) -> CaptureResult[str]:
        self._capture.readouterr()
        found = invoke(["job", *words])
        printed = self._capture.readouterr()
        assert found == code, printed
        return printed

    def out(self, *words: str, code: int = 0) -> str:
        """Standard output."""
        return self(*words, code=code).out

    def err(self, *words: str, code: int) -> str:
        """Standard error of a command that prints no result."""
        printed = self(*words, code=code)
        assert printed.out == ""
        return printed.err

    def json(self, *words: str, code: int = 0) -> Any:
        """The answer to --json."""
        return json.loads(self.out(*words, "--json", code=code))

    def lines(self, *words: str, code: int = 0) -> list[Any]:
        """The JSON lines that the command prints."""
        return [json.loads(line) for line in self.out(*words, code=code).splitlines()]


@pytest.fixture
def yard(capsys: pytest.CaptureFixture[str]) -> Yard:
    return Yard(capsys)


@pytest.fixture(scope="session")
def rendered() -> dict[str, Manifests]:
    """The cells by name."""
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    return {name: parse(renderer.build(repo.root() / "overlays" / name), name) for name in KINDS}


@pytest.fixture
def world(rendered: dict[str, Manifests]) -> NewWorld:
    """A maker of healthy jobs: `world("p5/llama-3-1-8b", nodes=3)`."""
    return lambda name="cpu/llama-tiny", nodes=None: World(rendered[name], KINDS[name], nodes)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A function that makes a world the cluster of `yard`; it returns the directory of the stand-in."""
    program = tmp_path / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n" + STAND_IN.read_text().partition("\n")[2])
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")  # a run of `make train` has the job's name
    monkeypatch.setattr(many, "SECONDS", 60.0)  # a busy machine starts the stand-in slowly

    def play(world: World) -> Path:
        seen = world.snapshot()
        plurals = {"Pod": "pods", "Event": "events", "Node": "nodes", "Secret": "secrets"}
        plurals |= {**kinds.NAMESPACED, **kinds.GLOBAL}
        objects = {
            plural: [{"kind": kind, **one} for one in seen.of(kind)]
            for kind, plural in plurals.items()
            if seen.saw(kind)
        }
        maps = [{**one, "data": dict.fromkeys(one["keys"], "")} for one in seen.of("ConfigMap")]
        objects |= {seen.workload.resource: [seen.job], "configmaps": maps}
        (tmp_path / "objects.json").write_text(json.dumps(objects))
        for log in seen.logs:
            before = "previous." if log.which == PREVIOUS else ""
            (tmp_path / f"{log.pod}.{before}log").write_text(log.text)
        return tmp_path

    return play
