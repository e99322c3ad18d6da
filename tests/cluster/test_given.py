"""TRAINYARD_TEST_KUBECONFIG: the same tests on a given cluster, here one of our own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import build
from tests.cluster.conftest import FOREIGN
from tests.cluster.control_plane import ControlPlane
from tests.parts.gomodule import Progress
from tools.core import repo

REFUSED = "test_42_what_the_webhook_refuses_and_what_preflight_refuses[no container pytorch]"
ON_ANY = f"tests/cluster/test_faults.py::{REFUSED}"
ON_OURS = "tests/cluster/test_isolation.py::test_there_is_no_way_out"
ON_OLD = [f"tests/cluster/test_{name}.py" for name in ("cells", "faults", "job_submit", "job_why")]
SECONDS, OLD_SECONDS = 300, 1800


def test_tests_run_on_a_given_cluster(control_plane: ControlPlane) -> None:
    """Tests that need the control plane are skipped there, with a reason."""
    done = _pytest(control_plane, control_plane.kube.kubeconfig, ON_ANY, ON_OURS)
    assert done.returncode == 0, done.stdout
    assert re.search(r"1 passed, 1 skipped", done.stdout)
    assert f"unset {FOREIGN}" in done.stdout


def test_control_a_cluster_that_is_not_there(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Nothing passes, so the first test did use the given cluster."""
    elsewhere = tmp_path / "kubeconfig"
    text = control_plane.kube.kubeconfig.read_text(encoding="utf-8")
    elsewhere.write_text(re.sub(r":6443", ":1", text), encoding="utf-8")
    done = _pytest(control_plane, elsewhere, ON_ANY)
    assert done.returncode == 1
    assert "refused" in done.stdout


@pytest.mark.cluster_all
@pytest.mark.parametrize("version", build.OLDER)
def test_the_same_holds_on_an_older_kubernetes(version: str, say: Progress) -> None:
    """With its own control plane, and its kubectl."""
    name = build.older(version)
    home = build.ensure(say, (name,)).roots[name] / "bin"
    said = subprocess.run([home / "kubectl", "version", "--client"], capture_output=True, text=True, check=True)
    assert f"v{version}" in said.stdout
    say(f"the tests of cells and of yard job on Kubernetes {version}")
    words = [sys.executable, "-m", "pytest", *ON_OLD, "-m", "not cluster_all"]
    done = subprocess.run(
        words,
        cwd=repo.root(),
        env={**os.environ, "KUBEBUILDER_ASSETS": str(home)},
        capture_output=True,
        text=True,
        timeout=OLD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed, 0 failed, 0 skipped", done.stdout)


def _pytest(plane: ControlPlane, kubeconfig: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    environment = {**plane.kube.environment, FOREIGN: str(kubeconfig)}
    environment.pop("KUBECONFIG")
    words = [sys.executable, "-m", "pytest", *tests]
    return subprocess.run(
        words, cwd=repo.root(), env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
