"""TRAINYARD_TEST_KUBECONFIG: the same tests on a cluster that somebody gives, here one of our own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.conftest import FOREIGN
from tests.cluster.control_plane import ControlPlane
from tools import repo

REFUSED = "test_42_what_the_webhook_refuses_and_what_preflight_refuses[no container pytorch]"
ON_ANY = f"tests/cluster/test_faults.py::{REFUSED}"
ON_OURS = "tests/cluster/test_isolation.py::test_there_is_no_way_out"
SECONDS = 300


def test_tests_run_on_a_given_cluster(control_plane: ControlPlane) -> None:
    """What reaches into the control plane is skipped there, and says so."""
    done = _pytest(control_plane, control_plane.kube.kubeconfig, ON_ANY, ON_OURS)
    assert done.returncode == 0, done.stdout
    assert re.search(r"1 passed, 1 skipped", done.stdout)
    assert f"unset {FOREIGN}" in done.stdout


def test_control_a_cluster_that_is_not_there(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Nothing passes, so the first test did ask the cluster that it was given."""
    elsewhere = tmp_path / "kubeconfig"
    text = control_plane.kube.kubeconfig.read_text(encoding="utf-8")
    elsewhere.write_text(re.sub(r":6443", ":1", text), encoding="utf-8")
    done = _pytest(control_plane, elsewhere, ON_ANY)
    assert done.returncode == 1
    assert "refused" in done.stdout


def _pytest(plane: ControlPlane, kubeconfig: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    environment = {**plane.kube.environment, FOREIGN: str(kubeconfig)}
    environment.pop("KUBECONFIG")
    words = [sys.executable, "-m", "pytest", *tests]
    return subprocess.run(
        words, cwd=repo.root(), env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
