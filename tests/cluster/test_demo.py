"""`make demo` on the cluster of the tests: what follows `kind create cluster`, by the same commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Nodes
from tests.cluster.kube import Kube
from tests.cluster.nodes import TRAINER
from tools.cluster import demo
from tools.core import repo

SECONDS = 1800


@pytest.fixture
def removed(kube: Kube) -> Iterator[None]:
    """The demo needs what the pods of earlier tests hold, and compares the namespaces before and after."""
    active = lambda: all(one["status"]["phase"] == "Active" for one in kube.list("namespaces"))  # noqa: E731
    kube.wait("the namespaces of earlier tests to be gone", active, 300)
    yield
    kube.call("delete", "namespace", demo.NAME, "--ignore-not-found", "--wait=false")


@pytest.mark.cluster_all
def test_the_demo_trains_looks_and_removes(kube: Kube, nodes: Nodes, asked: None, removed: None) -> None:
    """Operator and image are there. Claim, job and namespace are made and kept; `--down` removes them."""
    before = _names(kube)
    said = _yard("demo", "--yes", "--keep", f"--image={TRAINER}")
    for line in (
        "base/storage/single-node",
        "yard job submit cpu/llama-tiny",
        "yard job why",
        "HEALTHY",
        "yard job logs",
        "yard job status",
        "state       Succeeded",
    ):
        assert line in said, said
    assert "kept; yard demo --down" in said
    checked = _yard("cluster", "validate", "-n", demo.NAME, code=None)
    for name in ("nodes", "dns", "namespace", "claim", "rights", "admission"):
        assert re.search(rf"^(PASS|WARN) +{name} ", checked, re.MULTILINE), checked
    said = _yard("demo", "--down")
    assert "left: the training operator, which was there before" in said
    kube.wait("the demo to be gone", lambda: _names(kube) == before, 120)
    lines = [line for line in _yard("demo", "--down").splitlines() if not line.startswith("  waiting for the cluster")]
    assert all(line.startswith("left: ") for line in lines), "nothing else is there to remove"


def _yard(*words: str, code: int | None = 0) -> str:
    """Return what a command prints on both streams. AssertionError for another exit code than `code`."""
    command = [sys.executable, "-m", "tools.cli", *words]
    done = subprocess.run(command, cwd=repo.root(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


def _names(kube: Kube) -> set[tuple[str, str]]:
    """Return the objects that the demo could make outside of its namespace, and its namespace."""
    kinds = ("namespaces", "persistentvolumes", "clusterroles", "customresourcedefinitions")
    return {(kind, one["metadata"]["name"]) for kind in kinds for one in kube.list(kind)}
