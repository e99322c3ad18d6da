"""A clone of this checkout, with an environment of its own, in which the printed commands run as printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.local.conftest import processes_of
from tests.parts import tree
from tools.cells import kustomize
from tools.core import repo

SMALL: dict[str, dict[str, str]] = YAML(typ="safe", pure=True).load(Path(__file__).with_name("small.yaml"))


class Clone:
    """A copy of the tracked tree. `run` runs a shell line in it."""

    def __init__(self, root: Path, account: tuple[str, ...] = (), variables: Mapping[str, str] | None = None) -> None:
        """`account` is a command prefix that changes the user, `variables` replace the environment's."""
        self.root, self.account, self.variables = root, account, dict(variables or {})
        self.run_directory = root / "local" / "runs" / "cpu-llama-tiny-train"

    def shrink(self) -> None:
        """Write the small numbers into the cells."""
        for name, changes in SMALL.items():
            text = (repo.root() / name).read_text()
            for old, new in changes.items():
                assert old in text, f"{name} no longer says {old!r}"
                text = text.replace(old, new)
            (self.root / name).write_text(text)

    def restore(self) -> None:
        """Restore the committed numbers: the other cells of the same model need them."""
        for name in SMALL:
            shutil.copy2(repo.root() / name, self.root / name)

    def environment(self) -> dict[str, str]:
        kept = ("PATH", "HOME", "LANG", "TMPDIR")
        return {name: os.environ[name] for name in kept if name in os.environ} | self.variables

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.account, "bash", "-c", f"exec {line}"], cwd=self.root, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, line: str, timeout: float = 500) -> str:
        """Run a line and return its output. It must succeed."""
        process = self.start(line)
        output, _ = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{line} ended with {process.returncode}:\n{output[-3000:]}"
        return output

    def processes(self) -> dict[int, str]:
        return processes_of(self.root)


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(copied(tmp_path_factory.mktemp("clone") / "trainyard"))


def copied(root: Path) -> Path:
    """Copy the tree and make its environment."""
    if kustomize.find(repo.root()) is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for left processes in /proc, which only Linux has")
    tree.copy(root)
    _environment(root)
    return root


def _first_lines(python: Path) -> str:
    """What uv and pip write at the start of a script: a blank ends the program's name in its first line."""
    if " " not in str(python):
        return f"#!{python}"
    return f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''"


def _environment(root: Path) -> None:
    """`.venv` as set-up makes it, with this environment's packages instead of copies of them."""
    venv.EnvBuilder(symlinks=True).create(root / ".venv")
    prefix, own = Path(sys.prefix), root / ".venv"
    packages = Path(sysconfig.get_path("purelib"))
    site = own / packages.relative_to(prefix)
    (site / "trainyard.pth").write_text(f"{packages}\n{root}\n{root}/training/agent\n")
    for script in (prefix / "bin").iterdir():
        if script.name in ("yard", "torchrun", "pytest"):
            _, _, body = script.read_text().partition("\n")
            (own / "bin" / script.name).write_text(f"{_first_lines(own / 'bin/python')}\n{body}")
            (own / "bin" / script.name).chmod(0o755)
    programs = repo.root() / ".cache" / "bin"
    if programs.is_dir():
        (root / ".cache").mkdir()
        (root / ".cache" / "bin").symlink_to(programs)
    stamp = "from tools import bootstrap; bootstrap.write_stamp(bootstrap.expected_stamp())"
    subprocess.run([own / "bin/python", "-c", stamp], cwd=root, check=True)
