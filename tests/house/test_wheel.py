"""The wheel: one top-level package with all that the yard command reads, and no torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tools.core import repo

SHIPPED = ("tools", "training", "base", "overlays", "images")
LARGEST_MB = 150


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    to = tmp_path_factory.mktemp("wheel")
    call = f"import hatchling.build; print(hatchling.build.build_wheel({str(to)!r}))"
    subprocess.run([sys.executable, "-c", call], cwd=repo.root(), check=True, capture_output=True)
    return next(to.glob("*.whl"))


def test_it_holds_one_package_with_every_file_that_git_tracks(wheel: Path) -> None:
    """Data files were once left out, and every command of an installed wheel ended in a traceback."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not re.match(r"trainyard-[^/]+\.dist-info/", name)]
    assert {name.partition("/")[0] for name in names} == {"trainyard"}
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SHIPPED]
    tracked = subprocess.run(listed, cwd=repo.root(), check=True, capture_output=True, text=True).stdout
    wanted = {f"trainyard/{name}" for name in tracked.split() if (repo.root() / name).is_file()}
    assert wanted <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_an_editable_install_is_only_paths(tmp_path: Path) -> None:
    """Copies would hide every later change of the checkout."""
    call = f"import hatchling.build; print(hatchling.build.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", call], cwd=repo.root(), check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert [name for name in names if ".dist-info/" not in name] == ["_trainyard.pth"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `yard` of the wheel, in an environment of its own without extras."""
    home = tmp_path_factory.mktemp("installed")
    uv = str(repo.root() / ".venv/bin/uv")
    python = str(home / "venv/bin/python")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(home / "venv")], check=True)
    words = ["pip", "install", "--quiet", "--only-binary", ":all:", "--python", python, str(wheel)]
    subprocess.run([uv, *words], check=True)
    return home / "venv/bin/yard"


def run(yard: Path, directory: Path, *words: str) -> tuple[int, str]:
    """Run the installed yard in a directory of a user who has nothing else; return exit code and output."""
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    cache = {"XDG_CACHE_HOME": str(directory / "cache"), "HOME": str(directory)}
    argv = [str(yard), *words]
    done = subprocess.run(
        argv, cwd=directory, env=own | cache, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_the_installed_yard_works_without_torch_from_any_directory(installed: Path, tmp_path: Path) -> None:
    home = tmp_path / "user"
    for name in ("tools", "training"):  # user code has packages of these names
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text("raise SystemExit('the package of the user')\n")
    before = sorted(path for path in installed.parents[1].rglob("*") if "__pycache__" not in path.parts)

    assert run(installed, home, "--version") == (0, "yard, version 0.1.0\n")
    code, manifest = run(installed, home, "render", "cpu/llama-tiny")
    assert code == 0
    assert "PyTorchJob" in [item["kind"] for item in YAML(typ="safe").load_all(manifest)]
    (home / "job.yaml").write_text(manifest)
    for words in (["cpu/llama-tiny"], ["-f", "job.yaml"]):
        code, said = run(installed, home, "preflight", *words)
        assert (code, "Traceback" in said) == (0, False), said

    code, said = run(installed, home, "wiring", "-f", "job.yaml")
    assert (code, said.startswith("CANNOT TELL")) == (3, True), said
    assert "trainyard[train] @ file:///" in said, "an index may have another package of this name"
    for words in (["run", "cpu/llama-tiny"], ["run", "cpu/llama-tiny", "--show-example"],
                  ["stage", "hf://organisation/model", "--to", "local:"]):  # fmt: skip
        code, said = run(installed, home, *words)
        assert (code, "trainyard[train]" in said, "Traceback" in said) == (3, True, False), said
    assert not (home / "local/runs").exists(), "what cannot start leaves a run"
    code, said = run(installed, home, "new", "script", "mine", "--image", "a/b:1", "--command", "python a.py")
    assert (code, "checkout" in said) == (2, True), said

    (home / "Dockerfile").write_text("FROM python:3.12\nRUN pip install torch\nCMD python train.py\n")
    code, said = run(installed, home, "image", "check", "Dockerfile")
    assert "trainyard[image]" in said
    assert "Traceback" not in said
    code, said = run(installed, home, "job", "list")
    assert "Traceback" not in said

    after = sorted(path for path in installed.parents[1].rglob("*") if "__pycache__" not in path.parts)
    assert after == before, "an installed yard writes into its own package"
    size = sum(path.stat().st_size for path in after if path.is_file())
    assert size < LARGEST_MB * 10**6
    assert shutil.which("torchrun", path=str(installed.parent)) is None
