"""The tools read what the agent leaves behind as they read what the trainer leaves behind."""

from __future__ import annotations

import json
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.conftest import Started
from tests.job.world import World
from tools.cells import kustomize
from tools.core import repo
from tools.job import ranks
from tools.job.diagnosis.explain import explain
from tools.job.snapshot.snapshot import Snapshot
from tools.job.status import Status
from tools.kube.manifests import parse
from tools.simulator import launch
from training.remote import run_probe

REPORTS = """\
    import trainyard
    trainyard.latest()
    for step in range(1, 6):
        trainyard.report(step, steps=5, loss=3.0 / step)
    trainyard.save({"step": step}, step)
"""
PRINTS = """\
    for step in range(1, 6):
        print(f"step {step}/5 loss: {3.0 / step}")
"""
FAILS = """\
    import trainyard
    trainyard.report(4, loss=1.0)
    raise ValueError("the labels of image 12 are missing")
"""


@pytest.fixture(scope="module")
def cell() -> str:
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    return found.build(repo.root() / "overlays/cpu/llama-tiny")


@pytest.fixture
def seen(start: Callable[..., Started], cell: str, tmp_path: Path) -> Callable[..., Snapshot]:
    """Run a script below the agent; return what `yard job` sees of its run, as the run of a pod."""

    def see(text: str, code: int = 0) -> Snapshot:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        one = start(sys.executable, str(path))
        assert one.wait() == code, one.err
        world = World(parse(cell, "cell"), "m5.xlarge")
        if code:
            world.ended(0, code)
            world.end("Failed")
        answer = json.dumps(run_probe.look(one.run))
        world.run = json.loads(answer.replace(json.dumps(socket.gethostname()), json.dumps(world.name(0))))
        return world.snapshot()

    return see


def test_status_and_rank_zero_of_a_script_that_reports(seen: Callable[..., Snapshot]) -> None:
    snapshot = seen(REPORTS)
    training = Status(snapshot).training()
    assert {key: training[key] for key in ("source", "phase", "step", "steps", "loss", "checkpoints")} == {
        "source": "the run's own files",
        "phase": "training",
        "step": 5,
        "steps": 5,
        "loss": 0.6,
        "checkpoints": [5],
    }
    first = ranks.rank_zero(snapshot)
    assert first is not None
    assert first.certain
    assert first.how.startswith("rank 0's heartbeat is from ")


def test_status_of_a_script_that_only_prints(seen: Callable[..., Snapshot]) -> None:
    training = Status(seen(PRINTS)).training()
    assert (training["source"], training["step"], training["steps"]) == ("the run's own files", 5, 5)
    assert training["loss"] == 0.6


def test_why_names_the_exception_of_the_script(seen: Callable[..., Snapshot]) -> None:
    found = explain(seen(FAILS, 167))
    said = " ".join([found.causes[0].summary, *found.causes[0].evidence])
    assert "the labels of image 12 are missing" in said
    assert (found.causes[0].rank, "step 4" in said) == (0, True), said


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "/trainyard-agent/agent.pyz", "--", "torchrun", "--nnodes=3", "a.py"],
        ["/trainyard-agent/agent.pyz", "torchrun", "--nnodes=3", "a.py"],
        [
            "python3",
            "/trainyard-agent/agent.pyz",
            "--",
            "bash",
            "-c",
            "cd /app; torchrun --nnodes=3 a.py; echo",
        ],
    ],
)
def test_the_agent_is_seen_through(command: list[str]) -> None:
    """It passes SIGTERM on to the whole process group, so a shell in between does no harm."""
    found = launch.read(command, {})
    assert found.torchrun is not None
    assert found.torchrun.nodes() == (3, 3)
    assert (found.behind_entrypoint, found.signalled) == (True, True)
    without = launch.read(["bash", "-c", "cd /app; torchrun --nnodes=3 a.py; echo"], {})
    assert (without.behind_entrypoint, without.signalled) == (False, False), "the control"
