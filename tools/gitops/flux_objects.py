"""A cluster's directory as Flux sees it: which Kustomization applies what, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells.kustomize_graph import reached
from tools.cells.locate import KUSTOMIZATION_NAMES, is_kustomization
from tools.cluster.platform import FACTS
from tools.core.errors import UserError
from tools.core.repo import nearest, shown
from tools.gitops.run_file import GIT_REPOSITORY, KUSTOMIZATION
from tools.kube.manifests import Object, parse

SYNC = "flux-system"
# What a private repository's address needs beside it.
ACCESS = ("secretRef", "provider", "serviceAccountName", "proxySecretRef")


@dataclass(frozen=True)
class Applied:
    """One Flux Kustomization, and the file that it stands in."""

    item: Object
    source: Path

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.item["metadata"]["name"])

    @property
    def spec(self) -> Object:
        """Return its spec."""
        found: Object = self.item.get("spec") or {}
        return found

    def directory(self, root: Path) -> Path:
        """Return the directory that it applies."""
        return (root / str(self.spec.get("path", "."))).resolve()

    def files(self, root: Path) -> list[Path]:
        """Return the YAML files of this checkout that it applies, or that go into what it applies."""
        return [path for directory in self._directories(root) for path in sorted(directory.glob("*.y*ml"))]

    def _directories(self, root: Path) -> list[Path]:
        """Return the directories that Flux reads: those of a kustomization, or all below without one."""
        top = self.directory(root)
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
    """Return the clusters that Flux can reconcile: directories of clusters/ with facts and a sync."""
    found = (root / "clusters").glob(f"*/{SYNC}")
    return sorted(path.parent.name for path in found if (path.parent / FACTS).is_file())


def find(root: Path, text: str) -> Path:
    """Return the directory of the cluster that `text` names. Raises UserError with the nearest name."""
    name = text.strip("/").removeprefix("clusters/")
    known = names(root)
    if name in known:
        return root / "clusters" / name
    match = nearest(name, known)
    hint = f"did you mean {match}?" if match else f"clusters: {', '.join(known) or 'none'}"
    raise UserError(f"no such cluster: clusters/{name} has no {FACTS} and {SYNC}/", hint)


def kustomizations(cluster: Path) -> list[Applied]:
    """Return the Flux Kustomizations of a cluster, those of its runs too. Raises UserError."""
    files = [path for folder in ("", SYNC, "runs") for path in (cluster / folder).glob("*.y*ml")]
    return [
        Applied(item, path)
        for path in sorted(files)
        for item in _objects(path)
        if (item.get("apiVersion"), item.get("kind")) == KUSTOMIZATION
    ]


def source(cluster: Path) -> Mapping[str, Any]:
    """Return address and access of the repository that the cluster is reconciled from."""
    for path in sorted((cluster / SYNC).glob("*.y*ml")):
        for item in _objects(path):
            if (item.get("apiVersion"), item.get("kind")) == GIT_REPOSITORY:
                spec = item["spec"]
                return {"url": spec["url"], **{key: spec[key] for key in ACCESS if key in spec}}
    raise UserError(f"{shown(cluster)}/{SYNC}: no GitRepository of Flux in it", "see docs/flux.md")


def _objects(path: Path) -> list[Object]:
    text = path.read_text(encoding="utf-8")
    is_flux = "fluxcd.io/" in text and path.name not in KUSTOMIZATION_NAMES
    return parse(text, shown(path)).objects if is_flux else []
