"""The objects that Flux has for a cluster: its Kustomizations, the files they apply, and their repository."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import is_kustomization, reached
from tools.cluster import cluster_env
from tools.core.errors import UserError
from tools.core.repo import shown
from tools.gitops.run_file import GIT_REPOSITORY, KUSTOMIZATION
from tools.kube.manifests import Object, parse, text_of

SYNC = "flux-system"
TEAM = "TEAM_NAMESPACE"
# The fields of a GitRepository that a private or verified repository needs beside its address.
ACCESS = ("secretRef", "provider", "serviceAccountName", "proxySecretRef", "verify")


@dataclass(frozen=True)
class Applied:
    """A Flux Kustomization, and the file that defines it."""

    item: Object
    source: Path

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def spec(self) -> Object:
        found: Object = self.item.get("spec") or {}
        return found

    def files(self, root: Path) -> list[Path]:
        """Return the YAML files of this checkout that it applies, with those of all bases and Components."""
        return [path for directory in self._directories(root) for path in sorted(directory.glob("*.y*ml"))]

    def _directories(self, root: Path) -> list[Path]:
        """Return the directories that Flux reads; without a kustomization, all below the path."""
        top = (root / str(self.spec.get("path", "."))).resolve()
        if not top.is_dir():
            return []
        if is_kustomization(top):
            return reached(root, top)
        below = [top, *(path for path in sorted(top.rglob("*")) if path.is_dir())]
        made = [path for path in below if is_kustomization(path)]
        plain = [path for path in below if not any(one in (path, *path.parents) for one in made)]
        outer = [path for path in made if not any(one in path.parents for one in made)]
        return [*plain, *(found for path in outer for found in reached(root, path))]


def names(root: Path) -> list[str]:
    """Return the clusters that Flux can reconcile: those with cluster.env and flux-system/."""
    return cluster_env.names(root, SYNC)


def find(root: Path, text: str) -> Path:
    """Return the directory of the cluster that `text` names. Raises UserError with the nearest name."""
    return cluster_env.find(root, text, SYNC)


def kustomizations(cluster: Path, renderer: Renderer) -> list[Applied]:
    """Return the Flux Kustomizations of a cluster, with those of its runs. Raises UserError.

    A file in runs/ that cannot be read has none: `yard cluster run check` says what is wrong with it.
    """
    built = parse(renderer.build(cluster), shown(cluster)).objects
    found = [Applied(item, cluster / "kustomization.yaml") for item in built]
    for path in sorted((cluster / "runs").glob("*.y*ml")):
        with contextlib.suppress(UserError):
            objects = parse(text_of(path, shown(path)), shown(path)).objects
            found += [Applied(item, path) for item in objects]
    return [one for one in found if (one.item.get("apiVersion"), one.item.get("kind")) == KUSTOMIZATION]


def team(cluster: Path) -> str:
    """Return the namespace of the team's runs and jobs. Raises UserError."""
    path = cluster / cluster_env.FILE
    fact = cluster_env.read(path).get(TEAM)
    if fact is None or not fact.value.strip():
        raise UserError(f"{shown(path)}: {TEAM}, the namespace of the team's jobs, is not set")
    return fact.value


def source(cluster: Path, renderer: Renderer) -> dict[str, Any]:
    """Return address and access of the repository that Flux watches for a cluster. Raises UserError."""
    for item in parse(renderer.build(cluster), shown(cluster)).objects:
        kind = (item.get("apiVersion"), item.get("kind"))
        if kind == GIT_REPOSITORY and item["metadata"]["name"] == SYNC:
            spec = item["spec"]
            return {"url": spec["url"], **{key: spec[key] for key in ACCESS if key in spec}}
    raise UserError(f"{shown(cluster)} has no GitRepository {SYNC} of Flux", "see docs/flux.md")
