"""A run's file: two Flux objects, the commit that the run is made from and what is made of it.

The field names are Flux's own (GitRepository source.toolkit.fluxcd.io/v1, Kustomization
kustomize.toolkit.fluxcd.io/v1, of Flux 2.9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core.errors import UserError
from tools.kube.manifests import Object, parse

GIT_REPOSITORY = ("source.toolkit.fluxcd.io/v1", "GitRepository")
KUSTOMIZATION = ("kustomize.toolkit.fluxcd.io/v1", "Kustomization")
NAMESPACE = "flux-system"
# What a cell is made of: all that Flux takes of the commit.
FOLDERS = ["base", "overlays"]
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SUFFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
CELL = re.compile(r"overlays/([a-z0-9-]+)/([a-z0-9-]+)")
SSA = "kustomize.toolkit.fluxcd.io/ssa"
# The operator takes a changed job, for the pods that restart next. With this Flux makes it once and no more.
ONCE = f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: any
  annotations:
    {SSA}: IfNotPresent
"""
# A job has no condition Ready. One that runs or is done is Ready; one that waits in a queue or failed is not.
HEALTH = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "inProgress": (
        "!status.conditions.exists(c, c.type in ['Running', 'Succeeded', 'Failed'] && c.status == 'True')"
    ),
    "failed": "status.conditions.exists(c, c.type == 'Failed' && c.status == 'True')",
    "current": "status.conditions.exists(c, c.type in ['Running', 'Succeeded'] && c.status == 'True')",
}
HEAD = """\
# One run: {cell} at one commit, by `yard cluster run new`. Once committed it is a record and not edited:
# another run is another file. Removing this file removes the run's job; its checkpoints stay.
"""


@dataclass(frozen=True)
class Image:
    """The container image of a run: the name that the cell has, and what it becomes."""

    name: str
    new_name: str
    digest: str


@dataclass(frozen=True)
class Run:
    """What one run's file says."""

    name: str  # of the file and of both objects: <hardware>-<model>-<suffix>
    suffix: str
    cell: str  # overlays/<hardware>/<model>
    commit: str
    image: Image
    namespace: str
    source: Mapping[str, Any]  # url, and secretRef where the repository is private
    components: list[str] = field(default_factory=list)  # relative to the cell

    def objects(self) -> list[Object]:
        """Return the file's two objects."""
        metadata = {"name": self.name, "namespace": NAMESPACE}
        source: Object = {
            "interval": "24h",
            **self.source,
            "ref": {"commit": self.commit},
            "sparseCheckout": FOLDERS,
        }
        spec: Object = {
            "interval": "5m",
            "retryInterval": "2m",
            "timeout": "1m",
            "path": f"./{self.cell}",
            "prune": True,
            "sourceRef": {"kind": "GitRepository", "name": self.name},
            "targetNamespace": self.namespace,
            "nameSuffix": f"-{self.suffix}",
            "images": [
                {"name": self.image.name, "newName": self.image.new_name, "digest": self.image.digest}
            ],
            **({"components": self.components} if self.components else {}),
            "patches": [{"target": {"group": "kubeflow.org", "kind": "PyTorchJob"}, "patch": ONCE}],
            # Not `wait`: with it Flux looks at the job only once, for it then skips what it makes only once.
            "healthChecks": [health_check(job_name(self.cell, f"-{self.suffix}"), self.namespace)],
            "healthCheckExprs": [HEALTH],
        }
        return [
            {
                "apiVersion": GIT_REPOSITORY[0],
                "kind": GIT_REPOSITORY[1],
                "metadata": metadata,
                "spec": source,
            },
            {"apiVersion": KUSTOMIZATION[0], "kind": KUSTOMIZATION[1], "metadata": metadata, "spec": spec},
        ]

    def text(self) -> str:
        """Return the file."""
        documents = [_dump(item) for item in self.objects()]
        return HEAD.format(cell=self.cell) + "---\n".join(documents)


@dataclass(frozen=True)
class RunFile:
    """A run's file as it was read."""

    path: str  # clusters/<cluster>/runs/<name>.yaml
    source: Object
    kustomization: Object

    @property
    def name(self) -> str:
        """Return the run's name, which is the file's."""
        return Path(self.path).stem

    @property
    def spec(self) -> Object:
        """Return the Kustomization's spec."""
        found: Object = self.kustomization.get("spec") or {}
        return found

    @property
    def commit(self) -> str:
        """Return the commit that the run is pinned to; empty where it is not."""
        return str(((self.source.get("spec") or {}).get("ref") or {}).get("commit") or "")

    @property
    def cell(self) -> str:
        """Return the cell's directory."""
        return str(self.spec.get("path", "")).removeprefix("./").rstrip("/")

    @property
    def namespace(self) -> str:
        """Return the namespace that the job is in."""
        return str(self.spec.get("targetNamespace", ""))

    @property
    def job(self) -> str:
        """Return the name of the run's job, as kustomize makes it of the cell's."""
        return job_name(self.cell, str(self.spec.get("nameSuffix", "")))


def job_name(cell: str, suffix: str) -> str:
    """Return the name that kustomize gives the job of a cell (overlays/<hardware>/<model>)."""
    return f"{cell.removeprefix('overlays/').replace('/', '-')}-train{suffix}"


def health_check(job: str, namespace: str) -> Object:
    """Return the entry of spec.healthChecks that makes a run Ready or not by its job."""
    return {"apiVersion": HEALTH["apiVersion"], "kind": HEALTH["kind"], "name": job, "namespace": namespace}


def read(text: str, path: str) -> RunFile:
    """Return a run's file. Raises UserError where it is not one GitRepository and one Kustomization."""
    objects = parse(text, path).objects
    kinds = [(item.get("apiVersion"), item.get("kind")) for item in objects]
    if sorted(kinds, key=str) != sorted([GIT_REPOSITORY, KUSTOMIZATION], key=str):
        found = ", ".join(str(kind) for _, kind in kinds) or "nothing"
        raise UserError(
            f"{path}: a run is one GitRepository and one Kustomization of Flux, this holds {found}",
            "yard cluster run new CELL --cluster NAME writes one",
        )
    source, kustomization = sorted(objects, key=lambda item: str(item["kind"]))
    return RunFile(path, source, kustomization)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as blocks, and quotes what another reader may take for a number."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        """Indent lists too, as the files beside it do."""
        return super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> Any:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    style = '"' if COMMIT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True


def _dump(item: Object) -> str:
    return str(yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=120))
