"""The agent as it is brought into images: built once, and started with each Python of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from training.agent import build

VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


@cache
def interpreters() -> dict[str, str]:
    """Return the interpreters of this machine by version, also those that pyenv keeps beside the path."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        names = [shutil.which(f"python{version}"), *sorted(map(str, kept.glob(f"{version}.*/bin/python")))]
        for name in filter(None, names):
            if version not in found and _runs(name, version):
                found[version] = name
    return found


def _runs(name: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([name, "-ISc", code], capture_output=True, text=True, check=False, timeout=180)
    return done.returncode == 0 and done.stdout.strip() == version


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's one file."""
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    build.build(path)
    return path


class Started:
    """A command below the agent, with a run directory."""

    def __init__(self, command: list[str], run: Path, environment: dict[str, str]) -> None:
        self.run = run
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait(self, seconds: float = 120) -> int:
        self.out, self.err = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def end(self) -> dict:
        return json.loads((self.run / "end.json").read_text())

    def metrics(self) -> list[dict]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it took too long"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)


@pytest.fixture
def start(agent: Path, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a command below the agent: `start("sh", "-c", "...", TRAINYARD_HANG_SECONDS="1")`."""
    started: list[Started] = []

    def starter(*words: str, python: str = sys.executable, **variables: str) -> Started:
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        own = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        environment = {**own, "TRAINYARD_RUN": str(run), "PYTHONUNBUFFERED": "1", **variables}
        started.append(Started([python, str(agent), "--", *words], run, environment))
        return started[-1]

    yield starter
    for one in started:
        for pid in [*descendants(one.process.pid), one.process.pid] if one.process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.process.communicate()


def descendants(pid: int) -> list[int]:
    """Return the processes below one, the deepest first: ranks outlive a killed torchrun."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process has ended
            for child in map(int, path.read_text().split()):
                found += [*descendants(child), child]
    return found
