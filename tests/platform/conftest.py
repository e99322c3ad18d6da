"""The renderer and schemas to test with, copies of the manifests, and what a restricted namespace refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tools.cells import kustomize
from tools.core import repo
from tools.core.errors import UserError
from tools.kube import schemas

Object = dict[str, Any]
# The restricted Pod Security Standard, Kubernetes v1.35.
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
HOST = ("hostNetwork", "hostPID", "hostIPC")


@pytest.fixture(scope="session")
def renderer() -> kustomize.Renderer:
    """The renderer that a user's command takes."""
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: run `make setup`, or install kustomize 5.4 or newer")
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of base/, overlays/ and clusters/ to change."""
    root = tmp_path / "checkout"
    for name in ("base", "overlays", "clusters"):
        shutil.copytree(repo.root() / name, root / name)
    return root


@pytest.fixture(scope="session")
def objects() -> Callable[[str], list[Object]]:
    """A function from rendered YAML to its objects."""

    def parse(text: str) -> list[Object]:
        return [one for one in YAML(typ="safe", pure=True).load_all(text) if one]

    return parse


@pytest.fixture(scope="session")
def faults() -> Callable[[Object], list[str]]:
    """A function from an object to where it differs from its kind's schema; no schema is a fault too."""
    try:
        known = schemas.ensure(repo.root(), lambda line: print(line))
    except UserError as problem:
        pytest.skip(f"{problem.message}: run `python -m tools.kube.schemas` where the network is")

    def judge(item: Object) -> list[str]:
        found = known.faults(item)
        return ["no schema"] if found is None else [f"{one.path}: {one.message}" for one in found]

    return judge


@pytest.fixture(scope="session")
def loose() -> Callable[[Object], list[str]]:
    """A function from a pod's spec to what the restricted Pod Security Standard forbids in it."""
    return _loose


def _loose(pod: Object) -> list[str]:
    context = pod.get("securityContext", {})
    found = [key for key in HOST if pod.get(key)]
    found += [
        f"volume {key}" for volume in pod.get("volumes", []) for key in set(volume) - {"name"} - VOLUMES
    ]
    if pod.get("automountServiceAccountToken", True):
        found.append("token")
    for one in [*pod.get("initContainers", []), *pod["containers"]]:
        own = {**context, **one.get("securityContext", {})}
        bad = {
            "runAsNonRoot": not own.get("runAsNonRoot") or own.get("runAsUser") == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "privileged": own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation", True),
            "capabilities": own.get("capabilities", {}) != {"drop": ["ALL"]},
            "readOnlyRootFilesystem": not own.get("readOnlyRootFilesystem"),
            "hostPort": any(port.get("hostPort") for port in one.get("ports", [])),
        }
        found += [name for name, is_bad in bad.items() if is_bad]
    return found
