"""A run's file: two Flux objects, the commit that the run is built from and the Kustomization of its job.

The field names are Flux's own (GitRepository source.toolkit.fluxcd.io/v1, Kustomization
kustomize.toolkit.fluxcd.io/v1, of Flux 2.9).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core.errors import UserError
from tools.core.tables import filled, load
from tools.kube.manifests import Object, parse
from tools.kube.shapes import RUN, misshapes

GIT_REPOSITORY = ("source.toolkit.fluxcd.io/v1", "GitRepository")
KUSTOMIZATION = ("kustomize.toolkit.fluxcd.io/v1", "Kustomization")
# The account that a run is applied as, in the namespace of the team (base/plugins/namespace/runner.yaml).
RUNNER = "team-runner"
# The folders of the commit that a cell is built from.
FOLDERS = ["base", "overlays"]
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SUFFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
CELL = re.compile(r"overlays/([a-z0-9-]+)/([a-z0-9-]+)")
FEATURE = re.compile(r"\.\./\.\./feature/[a-z0-9-]+")
SSA = "kustomize.toolkit.fluxcd.io/ssa"
_TEXTS: dict[str, Any] = load("gitops/texts.yaml")
JOBS: dict[str, Any] = _TEXTS["jobs"]  # by kind: patches that create it once, and its health check
HEAD: str = _TEXTS["head"]
CHANGES = "# Changes: {words}\n"


@dataclass(frozen=True)
class Image:
    """The container image of a run: its name in the cell, and the name and digest that replace it."""

    name: str
    new_name: str
    digest: str


@dataclass(frozen=True)
class Run:
    name: str  # of the file and of both objects: <hardware>-<model>-<suffix>
    suffix: str
    cell: str  # overlays/<hardware>/<model>
    commit: str
    image: Image
    namespace: str
    source: Mapping[str, Any]  # url, and secretRef where the repository is private
    components: list[str] = field(default_factory=list)  # relative to the cell
    changes: str = ""  # the options that `patches` carry out
    patches: list[Object] = field(default_factory=list)  # of kustomize: target and patch
    kind: str = "PyTorchJob"  # of the job: one of JOBS

    def objects(self) -> list[Object]:
        # In the team's namespace, so that no other account and no other source can be named.
        metadata = {"name": self.name, "namespace": self.namespace}
        given = {**self.source, "ref": {"commit": self.commit}, "sparseCheckout": FOLDERS}
        names = {
            "cell": self.cell, "runner": RUNNER, "name": self.name, "namespace": self.namespace,
            "suffix": self.suffix, "image": self.image.name, "new name": self.image.new_name,
            "digest": self.image.digest,
        }  # fmt: skip
        spec: Object = filled(_TEXTS["spec"], names)
        own = JOBS[self.kind]
        spec |= {"components": self.components, "patches": [*own["patches"], *self.patches]}
        spec["healthChecks"] = [health_check(self.kind, job_name(self.cell, f"-{self.suffix}"), self.namespace)]
        spec["healthCheckExprs"] = [own["health"]]
        if not self.components:
            del spec["components"]
        objects = ((GIT_REPOSITORY, {"interval": "24h", **given}), (KUSTOMIZATION, spec))
        return [{"apiVersion": api, "kind": kind, "metadata": metadata, "spec": one} for (api, kind), one in objects]

    def text(self) -> str:
        head = HEAD.format(cell=self.cell) + (CHANGES.format(words=self.changes) if self.changes else "")
        return head + dumped(*self.objects())


@dataclass(frozen=True)
class RunFile:
    path: str  # clusters/<cluster>/runs/<name>.yaml
    source: Object
    kustomization: Object

    @property
    def name(self) -> str:
        return Path(self.path).stem

    @property
    def spec(self) -> Object:
        found: Object = self.kustomization.get("spec") or {}
        return found

    @property
    def commit(self) -> str:
        """The commit that the run is pinned to; empty where it is not pinned."""
        return str(((self.source.get("spec") or {}).get("ref") or {}).get("commit") or "")

    @property
    def cell(self) -> str:
        """The cell's directory, overlays/<hardware>/<model>."""
        return str(self.spec.get("path", "")).removeprefix("./").rstrip("/")

    @property
    def namespace(self) -> str:
        return str(self.spec.get("targetNamespace", ""))

    @property
    def kind(self) -> str:
        """The kind of the run's job, which its health check names."""
        named = (str(one.get("kind")) for one in self.spec.get("healthChecks") or [])
        return next((kind for kind in named if kind in JOBS), Run.kind)

    @property
    def job(self) -> str:
        return job_name(self.cell, str(self.spec.get("nameSuffix", "")))


def job_name(cell: str, suffix: str) -> str:
    """Return the name that kustomize gives the job of a cell, overlays/<hardware>/<model>."""
    return f"{cell.removeprefix('overlays/').replace('/', '-')}-train{suffix}"


def health_check(kind: str, job: str, namespace: str) -> Object:
    """Return the entry of spec.healthChecks that ties the run's Ready condition to its job."""
    return {"apiVersion": JOBS[kind]["health"]["apiVersion"], "kind": kind, "name": job, "namespace": namespace}


def read(text: str, path: str) -> RunFile:
    """Parse a run's file. Raises UserError where it is not one GitRepository and one Kustomization."""
    objects = parse(text, path).objects
    kinds = [(item.get("apiVersion"), item.get("kind")) for item in objects]
    if sorted(kinds, key=str) != sorted([GIT_REPOSITORY, KUSTOMIZATION], key=str):
        found = ", ".join(str(kind) for _, kind in kinds) or "nothing"
        raise UserError(
            f"{path}: a run is one GitRepository and one Kustomization of Flux; this file has {found}",
            "write it with: yard cluster run new CELL --cluster NAME",
        )
    for item in objects:
        for one in misshapes(item, RUN, ""):
            raise UserError(f"{path}: {one.path} of the {item['kind']} is not {one.wanted}")
    source, kustomization = sorted(objects, key=lambda item: str(item["kind"]))
    return RunFile(path, source, kustomization)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes multi-line texts as blocks, quotes commits (digits alone read as a number), indents lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def dumped(*documents: Any) -> str:
    """Return YAML as it is written into a run's file."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120))


def _text(dumper: _Dumper, text: str) -> Any:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    style = '"' if COMMIT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True
