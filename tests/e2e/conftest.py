"""A clone of this checkout, with an environment of its own, in which the printed commands run as printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.parts import tree
from tools.cells import kustomize
from tools.core import repo

# The cell with small numbers in place of its own: the same keys, the same ways, a tenth of the time.
SMALL = {
    "overlays/model/llama-tiny/model.yaml": {
        "sequence_length: 256": "sequence_length: 64",
        "steps: 200": "steps: 40",
        "warmup_steps: 20": "warmup_steps: 4",
        "global_batch_size: 32": "global_batch_size: 4",
        "eval_every: 100": "eval_every: 20",
        "eval_sequences: 64": "eval_sequences: 8",
        "max_new_tokens: 48": "max_new_tokens: 8",
    },
    "overlays/cpu/llama-tiny/cell.yaml": {
        "micro_batch_size: 8": "micro_batch_size: 2",
        "every: 50": "every: 5",
    },
    "overlays/model/llama-tiny-lora/model.yaml": {
        "sequence_length: 256": "sequence_length: 64",
        "steps: 60": "steps: 10",
        "warmup_steps: 6": "warmup_steps: 2",
        "global_batch_size: 32": "global_batch_size: 4",
        "eval_every: 30": "eval_every: 5",
        "eval_sequences: 64": "eval_sequences: 8",
        "max_new_tokens: 48": "max_new_tokens: 8",
    },
    "overlays/cpu/llama-tiny-lora/cell.yaml": {
        "micro_batch_size: 8": "micro_batch_size: 2",
        "every: 50": "every: 5",
    },
    "overlays/model/bert-tiny/model.yaml": {
        "source: python-stdlib": "source: training",
        "heldout_fraction: 0.02": "heldout_fraction: 0.1",
        "vocab_size: 4096": "vocab_size: 2048",
        "hidden_size: 128": "hidden_size: 64",
        "intermediate_size: 512": "intermediate_size: 128",
        "sequence_length: 128": "sequence_length: 64",
        "most: 20": "most: 10",
        "steps: 1500": "steps: 10",
        "warmup_steps: 50": "warmup_steps: 2",
        "global_batch_size: 32": "global_batch_size: 8",
        "eval_every: 250": "eval_every: 5",
        "eval_sequences: 256": "eval_sequences: 8",
    },
    "overlays/cpu/bert-tiny/cell.yaml": {
        "micro_batch_size: 16": "micro_batch_size: 2",
        "every: 50": "every: 5",
    },
}


class Clone:
    """A copy of the tracked tree. `run` runs a shell line in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
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
        return {name: os.environ[name] for name in kept if name in os.environ}

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self.root, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, line: str, timeout: float = 500) -> str:
        """Run a line and return its output. It must succeed."""
        process = self.start(line)
        output, _ = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{line} ended with {process.returncode}:\n{output[-3000:]}"
        return output

    def processes(self) -> dict[int, str]:
        """Live processes whose environment names this clone's volume."""
        mark, found = f"{self.root}/local/".encode(), {}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (directory / "environ").read_bytes():
                    found[int(directory.name)] = (directory / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # ended meanwhile
                continue
        return found


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    if kustomize.find(repo.root()) is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for left processes in /proc, which only Linux has")
    root = tmp_path_factory.mktemp("clone") / "trainyard"
    tree.copy(root)
    _environment(root)
    return Clone(root)


def _environment(root: Path) -> None:
    """`.venv` as set-up makes it, with this environment's packages instead of copies of them."""
    venv.EnvBuilder(symlinks=True).create(root / ".venv")
    prefix, own = Path(sys.prefix), root / ".venv"
    packages = Path(sysconfig.get_path("purelib"))
    site = own / packages.relative_to(prefix)
    (site / "trainyard.pth").write_text(f"{packages}\n{root}\n")
    for script in (prefix / "bin").iterdir():
        if script.name in ("yard", "torchrun", "pytest"):
            (own / "bin" / script.name).write_text(script.read_text().replace(str(prefix), str(own)))
            (own / "bin" / script.name).chmod(0o755)
    programs = repo.root() / ".cache" / "bin"
    if programs.is_dir():
        (root / ".cache").mkdir()
        (root / ".cache" / "bin").symlink_to(programs)
    stamp = "from tools import bootstrap; bootstrap.write_stamp(bootstrap.expected_stamp())"
    subprocess.run([own / "bin/python", "-c", stamp], cwd=root, check=True)
