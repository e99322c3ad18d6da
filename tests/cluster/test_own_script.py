"""A script in an image that knows nothing of this project: a cell of its own, on two real nodes, from
`yard new script` to an edit of its code while it runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import image
from tests.cluster.conftest import Nodes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.nodes import ENVIRONMENT, scripts
from tests.cluster.training import Training, short_to_submit, start
from tests.parts import tree
from tests.parts.gomodule import Progress
from tools.core import repo
from training.agent import build

IMAGE, TOOLBOX = "localhost/team/mine:1", "localhost/trainyard/toolbox:0.1.0"
JOB = "cpu-mine-train"
SECONDS = 900.0
EXAMPLE = repo.root() / "docs/examples/torch_loop/train.py"
NOTHING = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nothing"}}'
# What differs from the committed example, as words and their replacements.
ON_THE_CLUSTER = {"int, default=200": "int, default=100000", "default=0.0": "default=0.05"}
HERE = {"int, default=200": "int, default=30"}
PAUSE = "        time.sleep(args.pause)\n"
EDIT = {PAUSE: f"{PAUSE}        print(f'edited {{step}}', flush=True)\n"}
TRAINER_EDIT = "\nprint('edited trainer', flush=True)\n"


def script(*changes: dict[str, str]) -> str:
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in ((old, new) for one in changes for old, new in one.items()):
        assert old in text, f"the example no longer has {old!r}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def images(control_plane: ControlPlane, nodes: Nodes) -> None:
    """Push an image with Python, torch and a script, and the toolbox with the agent."""
    folder = control_plane.sandbox.root / "own-images"
    folder.mkdir()
    build.build(folder / "agent.pyz")
    base = ["etc", "proc", "sys", "dev", "tmp!", "var", "run", "usr"]
    links = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
    environment = {"Env": [f"PATH=/opt/bin:{ENVIRONMENT}/bin:/usr/bin:/bin"]}
    account = {"etc/passwd": "mine:x:1000:1000::/tmp:/bin/sh\n", "etc/group": "mine:x:1000:\n"}
    files: dict[str, Path | str] = {
        **account,
        **scripts(folder / "bin"),
        "app/train.py": script(ON_THE_CLUSTER),
    }
    config = {**environment, "WorkingDir": "/app"}
    mine = image.archive(folder / "mine.tar", IMAGE, [*base, "app"], files, links, config)
    toolbox: dict[str, Path | str] = {**account, "opt/trainyard/agent.pyz": folder / "agent.pyz"}
    archive = image.archive(folder / "toolbox.tar", TOOLBOX, base, toolbox, links, environment)
    for path, name in ((mine, IMAGE), (archive, TOOLBOX)):
        nodes.nodes[0].push(path, name)


Yard = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree.copy(tmp_path_factory.mktemp("own") / "trainyard")


@pytest.fixture(scope="module")
def own(checkout: Path) -> Path:
    """The directory of the script on the user's machine."""
    directory = checkout.parent / "mine"
    directory.mkdir()
    (directory / "train.py").write_text(script(HERE), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def yard(kube: Kube, checkout: Path, own: Path) -> Yard:
    """Run `yard` of the checkout where the script is, and check its exit code."""
    kept = {name: kube.environment[name] for name in ("PATH", "KUBECONFIG")}
    environment = {**os.environ, **kept, "PYTHONPATH": str(checkout)}

    def run(*words: str, code: int = 0, where: Path = own) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tools.cli", *words],
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    return run


@pytest.fixture(scope="module")
def cell(yard: Yard) -> str:
    words = ("--image", IMAGE, "--command", "torchrun train.py", "--nodes", "2")
    assert "cell overlays/cpu/mine: 2 pods" in yard("new", "script", "mine", *words).stdout
    return "cpu/mine"


@pytest.fixture
def team(kube: Kube, images: None) -> Iterator[str]:
    """A namespace with the claim. Its job ends with the test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kube.make_namespace(name, enforce="restricted")
    yield name
    kube.call("delete", "pytorchjobs", "--all", f"--namespace={name}", "--wait=false")
    kube.delete_namespace(name)


class Job(Training):
    """The own script's job."""

    def log(self, index: int) -> str:
        return self.kube.call("logs", f"{self.name}-worker-{index}", f"--namespace={self.namespace}").out

    def logs(self) -> str:
        return self.log(0) + self.log(1)

    def identity(self) -> list[tuple[str | None, int]]:
        return [(self.uid(index), self.restarts(index)) for index in (0, 1)]

    def checkpoint(self) -> int:
        """Return the step of the newest checkpoint."""
        return max(int(path.name[5:]) for path in (self.run / "checkpoints").glob("step-????????"))


def job_of(kube: Kube, team: str) -> Job:
    training = start(kube, team, NOTHING)
    return Job(kube, team, training.volume, JOB)


def test_from_new_script_to_why(kube: Kube, team: str, cell: str, yard: Yard) -> None:
    """Every command of the road."""
    assert "one job of 2 ranks" in yard("wiring", cell).stdout
    assert "will it train: PASS" in yard("preflight", cell).stdout
    assert "all pods ended well" in yard("run", cell).stdout
    job = job_of(kube, team)
    assert "training: step" in yard("job", "submit", cell, "-n", team, "--timeout", "600").stdout
    job.wait_step(30)
    status = json.loads(yard("job", "status", JOB, "-n", team, "--json").stdout)
    assert status["training"]["step"] >= 30, status
    rows = yard("job", "metrics", JOB, "-n", team, "--csv").stdout.splitlines()
    assert "loss" in rows[0]
    assert len(rows) > 20
    assert "HEALTHY: training" in yard("job", "why", JOB, "-n", team).stdout
    refused = yard("job", "sync", JOB, "-n", team, code=2).stderr
    assert "was not submitted for development" in refused


@pytest.mark.cluster_all
def test_training_continues_after_process_1_was_killed(
    kube: Kube, team: str, cell: str, yard: Yard, nodes: Nodes
) -> None:
    """SIGKILL for the agent, and with it for all of its container, first in one pod, then in the other."""
    job = job_of(kube, team)
    yard("job", "submit", cell, "-n", team, "--timeout", "600")
    for index in (1, 0):
        job.wait_step(job.last_step() + 45)
        pod = job.pod(index)
        (status,) = pod["status"]["containerStatuses"]
        nodes.of(pod).kill_container(status["containerID"].rpartition("/")[2])
        killed, saved = job.last_step(), job.checkpoint()
        kube.wait("its restart", lambda: job.restarts(index) >= 1, SECONDS)  # noqa: B023
        job.wait_step(killed + 30)
        found = [int(step) for step in re.findall(r"continuing after step (\d+)", job.logs())]
        assert any(saved <= step <= killed for step in found), (saved, killed, found)
        assert sorted(job.losses()) == list(range(1, job.last_step() + 1))


@pytest.mark.cluster_all
def test_a_proof_in_its_own_image(kube: Kube, team: str, cell: str, yard: Yard, tmp_path: Path) -> None:
    """All starts in two pods that share a claim. What the user has on it stays as it is, and nothing is added."""
    volume = start(kube, team, NOTHING).volume
    (volume / "theirs").write_text("kept")
    file = tmp_path / "job.yaml"
    file.write_text(yard("render", cell).stdout, encoding="utf-8")
    asked = yard("prove", "-f", str(file), "--submit", "-n", team, code=2).stderr
    assert "2 pods; the price is unknown" in asked
    assert "--yes agrees" in asked
    claims = ("world", "resume", "sigterm", "files")
    wanted = [word for claim in claims for word in ("--only", claim)]
    words = ("--submit", "-n", team, "--yes", "--json", "--steps", "45")
    for target in (("-f", str(file), *wanted), (cell, "--only", "world")):
        done = yard("prove", *target, *words)
        found = json.loads(done.stdout)
        judged = [name for name in claims if name in target]
        assert {row["claim"]: row["verdict"] for row in found["claims"]} == dict.fromkeys(judged, "PASS"), done.stdout
        assert "team/mine" in found["image"]
    assert not kube.call("get", "pods,pytorchjobs", f"--namespace={team}", "--output=name").out.strip()
    assert [path.name for path in volume.iterdir() if any(path.rglob("*")) or path.is_file()] == ["theirs"]


def test_an_edit_reaches_the_running_pods(
    kube: Kube, team: str, cell: str, yard: Yard, own: Path, nodes: Nodes, say: Progress
) -> None:
    """Saved, synchronised and at its next step, in the same pods; then a crash, and its correction."""
    job = job_of(kube, team)
    yard("job", "submit", cell, "-n", team, "--dev", "--timeout", "600")
    job.wait_step(60)
    before = job.identity()
    (own / "train.py").write_text(script(ON_THE_CLUSTER, EDIT), encoding="utf-8")
    saved = job.checkpoint()
    done = json.loads(yard("job", "sync", JOB, "train.py", "-n", team, "--json").stdout)
    assert (done["changed"], len(done["pods"])) == (["train.py"], 2)
    say(f"from the saved file to step {done['step']}: {done['seconds']:.1f} s, of these {done['parts']}")
    assert done["step"] > saved
    kube.wait("the edited line", lambda: f"edited {done['step']}" in job.logs(), 60)
    assert "continuing after step" in job.logs()
    assert "imports" not in job.logs(), "its ranks are forked"
    assert "already have these files" in yard("job", "sync", JOB, "train.py", "-n", team).stdout
    (own / "train.py").write_text(script() + "\ndef broken(:\n", encoding="utf-8")
    assert "train.py:" in yard("job", "sync", JOB, "train.py", "-n", team, code=2).stderr
    (own / "train.py").write_text("raise ValueError('misspelt')\n", encoding="utf-8")
    failed = yard("job", "sync", JOB, "train.py", "-n", team, code=1).stdout
    assert "ValueError: misspelt" in failed
    (own / "train.py").write_text(script(ON_THE_CLUSTER, EDIT), encoding="utf-8")
    assert "with the new code" in yard("job", "sync", JOB, "-n", team).stdout
    assert job.identity() == before, "the same pods, never restarted"


@pytest.mark.cluster_all
def test_the_trainer_of_this_repository_takes_an_edit(
    kube: Kube, team: str, yard: Yard, checkout: Path, rendered: dict[str, str], say: Progress
) -> None:
    """Its ranks are forked anew from a server that has imported the changed code."""
    name = "cpu-llama-tiny-train"
    cell = checkout.parent / "ours"
    cell.mkdir()
    (cell / "job.yaml").write_text(short_to_submit(rendered["overlays/cpu/llama-tiny"], steps=20000))
    (cell / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    job = Job(kube, team, start(kube, team, NOTHING).volume)
    yard("job", "submit", str(cell), "-n", team, "--dev", "--timeout", "900")
    job.wait_step(45)
    before = job.identity()
    path = checkout / "training/pretrain.py"
    path.write_text(path.read_text(encoding="utf-8") + TRAINER_EDIT, encoding="utf-8")
    words = ("job", "sync", name, "training/pretrain.py", "-n", team, "--json")
    done = json.loads(yard(*words, where=checkout).stdout)
    assert done["changed"] == ["training/pretrain.py"]
    say(f"from the saved file of the trainer to step {done['step']}: {done['seconds']:.1f} s, of these {done['parts']}")
    assert done["step"] > 40
    kube.wait("the edited line", lambda: "edited trainer" in job.log(0) and "edited trainer" in job.log(1), 60)
    assert "each rank imports for itself" not in job.logs()
    assert job.identity() == before


@pytest.mark.cluster_all
def test_sync_changes_all_pods_or_none(kube: Kube, team: str, cell: str, yard: Yard, own: Path) -> None:
    """A pod that is going is named, and the other keeps its code and its processes."""
    job = job_of(kube, team)
    yard("job", "submit", cell, "-n", team, "--dev", "--timeout", "600")
    (own / "train.py").write_text(script(ON_THE_CLUSTER, EDIT), encoding="utf-8")
    kube.run("delete", "pod", f"{JOB}-worker-1", f"--namespace={team}", "--wait=false")
    message = yard("job", "sync", JOB, "train.py", "-n", team, code=1).stderr
    assert f"{JOB}-worker-1 " in message
    assert "nothing was changed" in message
    assert "edited" not in job.logs()
    assert "another version" not in job.logs()
    left = kube.run("exec", f"{JOB}-worker-0", f"--namespace={team}", "--", "ls", "/trainyard-code")
    assert "staged" not in left
