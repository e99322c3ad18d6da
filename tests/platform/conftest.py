"""The renderer and schemas, copies of the manifests, and the rules of a restricted namespace."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.parts import upstream
from tools.cells import kustomize
from tools.core import repo
from tools.kube import schemas

Object = dict[str, Any]
# The restricted Pod Security Standard, Kubernetes v1.35.
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"),
    "secret",
}
HOST = ("hostNetwork", "hostPID", "hostIPC")


@pytest.fixture(scope="session")
def renderer() -> kustomize.Renderer:
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    return found


@pytest.fixture(scope="session")
def fetcher(renderer: kustomize.Renderer, tmp_path_factory: pytest.TempPathFactory) -> kustomize.Renderer:
    """The renderer, with the directories that base/plugins takes from GitHub on this machine."""
    return upstream.fetcher(renderer, tmp_path_factory.mktemp("upstream"))


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
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function from a cell and Components to a user's directory that combines them."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("base", "overlays"):
        shutil.copytree(repo.root() / name, tree / name)

    def make(cell: str, *components: str, prefix: str = "") -> Path:
        path = tree / "users" / "-".join((cell, prefix, *components)).replace("/", "-")
        path.mkdir(parents=True, exist_ok=True)
        document = {
            "resources": [f"../../overlays/{cell}"],
            "components": [f"../../{component}" for component in components],
            "namePrefix": prefix,
        }
        (path / "kustomization.yaml").write_text(json.dumps(document), encoding="utf-8")
        return path

    return make


@pytest.fixture(scope="session")
def above(
    directory: Callable[..., Path], renderer: kustomize.Renderer, objects: Callable[[str], list[Object]]
) -> Callable[..., list[Object]]:
    """A function from a cell and Components to the objects of such a directory."""

    @functools.cache
    def build(cell: str, *components: str, prefix: str = "") -> list[Object]:
        return objects(renderer.build(directory(cell, *components, prefix=prefix)))

    return build


def of_kind(made: Iterable[Object], kind: str) -> Object:
    """Return the one object of a kind."""
    (found,) = (one for one in made if one["kind"] == kind)
    return found


@pytest.fixture(scope="session")
def faults() -> Callable[[Object], list[str]]:
    """A function from an object to its differences from the schema of its kind. No schema is a fault too."""
    known = schemas.shipped()

    def check(item: Object) -> list[str]:
        found = known.faults(item)
        return ["no schema"] if found is None else [f"{one.path}: {one.message}" for one in found]

    return check


@pytest.fixture(scope="session")
def loose() -> Callable[[Object], list[str]]:
    """A function from the spec of a pod to its violations of the restricted Pod Security Standard."""
    return _loose


def _loose(pod: Object) -> list[str]:
    context = pod.get("securityContext", {})
    found = [key for key in HOST if pod.get(key)]
    found += [f"volume {key}" for volume in pod.get("volumes", []) for key in set(volume) - {"name"} - VOLUMES]
    if pod.get("automountServiceAccountToken", True):
        found.append("token")
    for one in [*pod.get("initContainers", []), *pod["containers"]]:
        own = {**context, **one.get("securityContext", {})}
        bad = {
            "runAsNonRoot": not own.get("runAsNonRoot") or own.get("runAsUser") == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "privileged": own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation", True),
            "capabilities": own.get("capabilities", {}) != {"drop": ["ALL"]},
            "readOnlyRootFilesystem": not own.get("readOnlyRootFilesystem"),
            "hostPort": any(port.get("hostPort") for port in one.get("ports", [])),
        }
        found += [name for name, is_bad in bad.items() if is_bad]
    return found
