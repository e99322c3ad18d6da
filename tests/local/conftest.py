"""A checkout of its own for tests that run `yard`, and jobs whose pods run a stand-in for the trainer."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.parts.ports import free_port
from tools.cells import kustomize
from tools.core import repo

STAND_IN = Path(__file__).with_name("stand_in.py")
SECONDS = 180  # far above what any of these runs needs; ends a test that hangs

Object = dict[str, Any]
MakeJob = Callable[..., Object]


def _replica(count: int, command: list[str], env: dict[str, str], port: int) -> Object:
    container: Object = {
        "name": "pytorch",
        "image": "localhost/none",
        "command": command,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [
            {"name": "shared", "mountPath": "/shared"},
            {"name": "tmp", "mountPath": "/scratch"},
        ],
    }
    container["ports"] = [{"name": "pytorchjob-port", "containerPort": port}]
    volumes = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": "trainyard"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 20}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}


@pytest.fixture
def make_job() -> MakeJob:
    """A function that makes PyTorchJobs: elastic workers, or with `master` one Master and the rest
    workers.
    """

    def make(
        name: str = "job",
        *,
        pods: int = 2,
        master: bool = False,
        elastic: bool = True,
        command: list[str] | None = None,
        env: dict[str, str] | None = None,
        port: int | None = None,
        spec: Object | None = None,
    ) -> Object:
        meeting = port or free_port()  # several tests, and a real run, may share this machine
        words = command or ["python", str(STAND_IN)]
        values = {"HOME": "/scratch", "TRAINYARD_RUN": f"/shared/runs/{name}", **(env or {})}
        replicas = {"Worker": _replica(pods - master, words, values, meeting)}
        if master:
            replicas = {"Master": _replica(1, words, values, meeting), **replicas}
        body: Object = {"pytorchReplicaSpecs": copy.deepcopy(replicas), "nprocPerNode": "1"}
        if elastic and not master:
            body["elasticPolicy"] = {"rdzvBackend": "c10d"}
        body.update(spec or {})
        body = {key: value for key, value in body.items() if value is not None}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name},
            "spec": body,
        }

    return make


@dataclass
class Checkout:
    """A copy of the product with its own cells. Everything that a run writes is in it."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def cell(self, *objects: Object) -> str:
        """Write a cell that renders to `objects` and return its path from the root."""
        directory = self.root / "overlays" / "test" / objects[0]["metadata"]["name"]
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "objects.yaml").open("w") as file:
            YAML(typ="safe").dump_all(objects, file)
        (directory / "kustomization.yaml").write_text("resources: [objects.yaml]\n")
        return directory.relative_to(self.root).as_posix()

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `yard` with these arguments and with `variables` added to the user's environment."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.cli", *arguments],
            cwd=self.root,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def yard(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(list(arguments), process.returncode, out, err)

    def run_directory(self, name: str) -> Path:
        return self.root / "local" / "runs" / name

    def processes(self) -> dict[int, str]:
        return processes_of(self.root)


def processes_of(root: Path) -> dict[int, str]:
    """Return the live processes of a checkout's runs, whose environment names its volume."""
    mark = f"{root}/local/".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if mark in (directory / "environ").read_bytes():
                found[int(directory.name)] = (directory / "cmdline").read_bytes().decode(errors="replace")
    return found


@pytest.fixture(scope="session")
def _copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    for package in ("tools", "training"):
        shutil.copytree(repo.root() / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def checkout(_copied: Path) -> Iterator[Checkout]:
    """A checkout without runs. A process that survives the test is killed and fails it."""
    if kustomize.find(repo.root()) is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    if not sys.platform.startswith("linux"):
        pytest.skip("finds left processes in /proc, which only Linux has")
    (_copied / ".cache").mkdir(exist_ok=True)
    program = repo.root() / ".cache" / "bin"
    if program.is_dir() and not (_copied / ".cache" / "bin").exists():
        (_copied / ".cache" / "bin").symlink_to(program)
    result = Checkout(_copied)
    yield result
    for process in result.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    deadline = time.monotonic() + 10  # for the kernel to end what was killed
    while (left := result.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(_copied / "local", ignore_errors=True)
    shutil.rmtree(_copied / "overlays", ignore_errors=True)
    assert not left, f"processes were left behind: {left}"


def wait_until(condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Poll until `condition` holds; fail the test with `what` when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., None]:
    return wait_until
