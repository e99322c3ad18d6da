"""`make train` in directories with unusual names, without a C++ compiler, and as a user without rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Clone, copied

TRAIN = 'make train ARGS="--set train.steps=3 --set train.warmup_steps=1 --set train.eval_every=3"'
COMPILERS = ("g++", "clang++", "c++", "gcc", "clang", "cc")
NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="trainyard-place-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _programs(directory: Path) -> Path:
    """Link every program of PATH but the C++ compilers."""
    directory.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in folder.iterdir() if folder.is_dir() else ():
            link = directory / program.name
            if not program.name.startswith(COMPILERS) and not link.is_symlink():
                link.symlink_to(program)
    return directory


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "compiled"),
    [("a blank and höhle-日本", True), ("no-compiler", False), ("no-root", True)],
)
def test_make_train_works_in_every_place(place: Path, name: str, compiled: bool) -> None:
    root = copied(place / name)
    account: tuple[str, ...] = ()
    variables = {"HOME": str(place), "TMPDIR": str(place)}
    if name == "no-compiler":
        variables["PATH"] = str(_programs(place / "programs"))
    if name == "no-root" and os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is missing: install util-linux, or run the tests as another user")
        account = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
    clone = Clone(root, account, variables)
    clone.shrink()
    if account:
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        if subprocess.run([*account, str(root / ".venv/bin/python"), "-c", ""], check=False).returncode != 0:
            pytest.skip(f"other users may not run {sys.base_prefix}: install Python outside of a home directory")
    train = TRAIN.replace("--set", "--set device.compile=on --set", 1) if compiled else TRAIN
    output = clone.run(train, timeout=850)
    assert ("blocks compiled" in output, "blocks not compiled" in output) == (compiled, not compiled), output[-3000:]
    assert "held-out loss" in output
