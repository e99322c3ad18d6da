"""What no file of the repository may contain, and how continuous integration runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.bed import alive

ROOT = Path(__file__).resolve().parents[2]

# Assembled from parts, so that this file does not contain what it looks for.
HOSTS = [
    *("py" + "pi.org", "python" + "hosted.org", "proxy.go" + "lang.org", "registry.npm" + "js"),
    *("crates" + ".io", "deb.deb" + "ian.org", "repo.mav" + "en", "download.py" + "torch.org"),
]
FORBIDDEN = {
    "a package registry's host": re.compile("|".join(map(re.escape, HOSTS))),
    "a path of the machine it was written on": re.compile(r"(?<![\w.}/-])/(?:work|root)(?![\w-])"),
    "unfinished work": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
}


def tree() -> list[Path]:
    """Return the files that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: clone the repository to run this test")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str) -> None:
    found = []
    for path in tree():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if FORBIDDEN[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a package registry's host", "index = https://" + "py" + "pi.org/simple"),
        ("a path of the machine it was written on", "see /" + "work/main/README.md"),
        ("unfinished work", "# TO" + "DO later"),
    ],
)
def test_each_pattern_finds_its_kind(what: str, line: str) -> None:
    assert FORBIDDEN[what].search(line)
    assert not FORBIDDEN[what].search("work through the root of the workload in /workspace at $ROOT/work")


@pytest.fixture
def make(tmp_path: Path) -> Path:
    """A copy of .ci/run, beside a `make` to write."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin/make"


def integration(make: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/run with this script as `make`."""
    make.write_text(f'#!/bin/sh\necho "called: $@"\n{script}\n')
    make.chmod(0o755)
    path = {"PATH": f"{make.parent}:{os.environ['PATH']}"}
    where, command = make.parents[1], ["bash", ".ci/run"]
    return subprocess.run(command, cwd=where, env=path | environment, capture_output=True, text=True, timeout=180)


def test_continuous_integration_runs_each_target_once_in_a_clean_environment(make: Path) -> None:
    given = {"PYTHONPATH": "/x", "VIRTUAL_ENV": "/y", "PIP_INDEX_URL": "kept", "RANK": "3"}
    done = integration(make, "env", **given)
    assert done.returncode == 0, done.stderr
    called = re.findall(r"called: (.*)", done.stdout)
    assert called == ["setup", "lint", "types", "test", "test-security", "test-smoke", "test-cluster"]
    assert "PIP_INDEX_URL=kept" in done.stdout
    assert not re.search(r"(?m)^(PYTHONPATH|VIRTUAL_ENV|RANK)=", done.stdout)


def test_continuous_integration_builds_the_cluster_beside_the_tests(make: Path) -> None:
    """The tests begin while the build runs; a failure ends both."""
    build = 'if [ "$1" = cluster-programs ]; then echo $$ >building; exec sleep 170; fi\n'
    wait = 'if [ "$1" = test ]; then until [ -s building ]; do sleep 0.1; done; exit 1; fi'
    done = integration(make, build + wait)
    assert done.returncode != 0
    assert re.findall(r"called: (.*)", done.stdout) == ["setup", "lint", "types", "test"]
    pid = int((make.parents[1] / "building").read_text())
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(pid)


def test_continuous_integration_stops_at_the_first_failure(make: Path) -> None:
    done = integration(make, '[ "$1" != lint ]')
    assert done.returncode != 0
    assert re.findall(r"called: (.*)", done.stdout) == ["setup", "lint"]
