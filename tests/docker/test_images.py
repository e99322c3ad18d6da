"""Our own images, built and used. The last test removes them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import LOGIN, LOGIN_HASH, Harness
from tools.cells import kustomize
from tools.core import repo
from tools.core.wait import until
from tools.image.rules import evaluate
from tools.image.smoke import RESTRICTED

UV = str(Path(sys.executable).with_name("uv"))


def image(engine: Harness, name: str, base: str) -> dict[str, Any]:
    """Build an image of images/ and return its record."""
    done = engine.yard("build", name, "--build-arg", f"BASE={base}", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def trainer(engine: Harness) -> dict[str, Any]:
    """The record of trainer-cpu."""
    return image(engine, "trainer-cpu", engine.base())


def test_the_sbom_lists_the_packages_of_the_image(engine: Harness, trainer: dict[str, Any]) -> None:
    """Those of Python and of the system, in the image that was built."""
    found = json.loads((engine.tree / "local/images/trainer-cpu.cdx.json").read_text())
    assert found["metadata"]["component"]["version"] == trainer["id"]
    names = {one["purl"].partition("@")[0] for one in found["components"]}
    assert {"pkg:pypi/torch", "pkg:pypi/safetensors", "pkg:deb/debian/libc6"} <= names
    made = json.loads((engine.tree / "local/images/trainer-cpu.slsa.json").read_text())
    assert made["runDetails"]["metadata"]["invocationId"] == trainer["id"]
    assert (engine.tree / "local/images/trainer-cpu.log").stat().st_mode & 0o077 == 0


def test_a_killed_training_continues_with_the_same_losses(engine: Harness, trainer: dict[str, Any]) -> None:
    """Level full includes the other levels, and its control: the same run without a kill."""
    done = engine.yard("test", trainer["tags"][0], "--level", "full", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert {one["summary"].split(":")[0] for one in found} == {
        *("imports", "device", "entrypoint", "signal", "rights", "restricted", "environment"),
        *("training", "checkpoint", "resume"),
    }
    assert engine.docker("ps", "--all", "--quiet", "--filter", "name=yard-test").strip() == ""
    assert engine.docker("volume", "ls", "--quiet", "--filter", "name=yard-test").strip() == ""


def test_a_change_of_the_code_builds_one_layer(engine: Harness, trainer: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(engine.tree / "training", tmp_path / "training")
    for name in ("requirements.lock", ".dockerignore", "images"):
        source = engine.tree / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    with (tmp_path / "training/entrypoint.py").open("a") as file:
        file.write("\n# changed\n")
    words = ["--context", str(tmp_path), "--build-arg", f"BASE={engine.base()}", "--json"]
    words += ["--repository", "localhost/trainyard/changed"]
    done = engine.yard("build", str(tmp_path / "images/trainer-cpu"), *words)
    assert done.returncode == 0, done.stderr[-2000:]
    there = (
        json.loads(engine.docker("image", "inspect", one))[0] for one in (json.loads(done.stdout)["id"], trainer["id"])
    )
    layers = [one["RootFS"]["Layers"] for one in there]
    assert layers[0][:-1] == layers[1][:-1]
    assert layers[0][-1] != layers[1][-1]


def test_tensorboard_needs_a_password_and_tls(engine: Harness, tmp_path: Path) -> None:
    """Two containers as in a pod: one network, read-only, no capabilities."""
    made = image(engine, "tensorboard", engine.base_with_apt())
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=tensorboard",
        "-days",
        "2",
    ]
    words += ["-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")]
    subprocess.run(words, capture_output=True, check=True)
    (tmp_path / "tls.key").chmod(0o644)  # for the container's user
    (tmp_path / "htpasswd").write_text(f"{LOGIN[0]}:{LOGIN_HASH}\n")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    mounts = [f"--volume={tmp_path}:/etc/trainyard/{name}:ro" for name in ("tls", "login")]
    board = ["--logdir=/tmp", "--host=127.0.0.1", "--port=6006"]
    engine.docker("run", "--detach", "--name", "board", *RESTRICTED, made["id"], *board)
    proxy = ["--network", "container:board", "--entrypoint", "nginx", made["id"]]
    proxy += ["-c", "/etc/trainyard/proxy.conf"]
    engine.docker("run", "--detach", "--name", "proxy", *RESTRICTED, *mounts, *proxy)
    address = engine.docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", "board").strip()

    def status(url: str, *words: str) -> str:
        ask = ["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20", *words, url]
        return engine.run(ask).stdout

    try:
        login = ["--user", ":".join(LOGIN)]
        assert until(lambda: status(f"https://{address}:8443/", *login) == "200", 120)
        assert status(f"https://{address}:8443/") == "401"
        assert status(f"https://{address}:8443/", "--user", f"{LOGIN[0]}:wrong") == "401"
        assert status(f"https://{address}:8443/healthz") == "204"
        assert status(f"http://{address}:6006/") == "000"
    finally:
        engine.docker("rm", "--force", "proxy", "board")


def test_the_toolbox_has_its_programs_and_prepares_without_torch(engine: Harness) -> None:
    made = image(engine, "toolbox", engine.base_with_apt())
    script = "dig -v && ss -V && curl --version && jq --version && nc -h && python -m training.prepare --help"
    said = engine.docker("run", "--rm", *RESTRICTED, "--entrypoint", "sh", made["id"], "-c", script)
    assert "--config CONFIG" in said
    script = "exec python3 /opt/trainyard/agent.pyz -- echo 'step 1 loss 2.5'"
    said = engine.docker("run", "--rm", *RESTRICTED, "--entrypoint", "sh", made["id"], "-c", script)
    assert said.splitlines()[-1] == "step 1 loss 2.5"
    code = "import importlib.util as u, training.prepare; print(u.find_spec('torch'))"
    assert engine.docker("run", "--rm", "--entrypoint", "python", made["id"], "-c", code).strip() == "None"


@pytest.mark.parametrize(
    ("name", "lock"),
    [("trainer-cuda", "requirements.lock"), ("trainer-neuron", "tests/neuron/requirements.lock")],
)
def test_the_locks_of_images_that_were_not_built_resolve_for_their_platform(
    name: str, lock: str, tmp_path: Path
) -> None:
    """For the Python and the C library of their base, Ubuntu 24.04: every wheel exists with its hash."""
    assert f"COPY {lock} " in evaluate.find(name).dockerfile.read_text()
    subprocess.run([sys.executable, "images/layers.py", lock, str(tmp_path)], cwd=repo.root(), check=True)
    parts = ["rest"] if name == "trainer-neuron" else ["nvidia", "torch", "rest"]
    platform = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39"]
    words = [
        UV,
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        *platform,
    ]
    words += ["--target", str(tmp_path / "target"), "--cache-dir", str(repo.root() / ".cache/uv")]
    for part in parts:
        words += ["--requirements", str(tmp_path / f"{part}.txt")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Would install" in done.stderr


def test_pushed_pulled_by_its_digest_and_rendered_with_it(
    engine: Harness, trainer: dict[str, Any], registry: str
) -> None:
    """The engine's image and cache are removed in between, so that the registry's image comes back.

    One file changes in git, and one line in the rendered cell.
    """

    def git(*words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        command = ["git", "-C", str(engine.tree), *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def rendered() -> list[str]:
        cell = engine.tree / "overlays/cpu/llama-tiny"
        return kustomize.ensure(repo.root(), print).build(cell).splitlines()

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "all")
    before = rendered()
    done = engine.yard("push", "trainer-cpu", "--to", f"{registry}/team/trainer-cpu:1", "--pin", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    digest = json.loads(done.stdout)["digest"]
    engine.docker("image", "rm", "--force", trainer["id"])
    engine.docker("builder", "prune", "--all", "--force")
    name = f"{registry}/team/trainer-cpu@{digest}"
    engine.docker("pull", "--quiet", name)
    done = engine.yard("test", name, "--level", "quick")
    assert done.returncode == 0, done.stdout
    assert git("diff", "--name-only").split() == ["overlays/images/kustomization.yaml"]
    changed = [new for old, new in zip(before, rendered(), strict=True) if old != new]
    assert [line.strip() for line in changed] == [f"image: {name}"]
