"""What a cluster's API server tells about nodes and components, at one moment, in an object that can be kept.

Every check reads a State and never the cluster, so that a verdict can be repeated from a recorded one. What
could not be seen stands in `unseen` with the reason; nothing is concluded from its absence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tools.aws.retry_budget import Patience
from tools.core.errors import UserError
from tools.core.repo import shown
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object

FILE = "cluster.json"
CRD, OPERATOR_WEBHOOK = "customresourcedefinitions.apiextensions.k8s.io", "validatingwebhookconfigurations"
# What is read, each kind by itself: a right that is missing hides one kind and not the rest.
ALL_NAMESPACES = ("pods", "endpointslices.discovery.k8s.io", "persistentvolumeclaims")
CLUSTER_WIDE = ("nodes", "namespaces", CRD, OPERATOR_WEBHOOK, "csidrivers", "csinodes")


@dataclass(frozen=True)
class State:
    """Objects by kind, as CLUSTER_WIDE and ALL_NAMESPACES spell them, and why others could not be seen."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> list[Object]:
        """Return the objects of a kind, none where they could not be seen."""
        return self.objects.get(kind, [])

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return one object, None where there is none."""
        for one in self.of(kind):
            metadata = one["metadata"]
            if metadata["name"] == name and namespace in (None, metadata.get("namespace")):
                return one
        return None

    def save(self, directory: Path) -> None:
        """Keep it as a file."""
        directory.mkdir(parents=True, exist_ok=True)
        value = {"objects": self.objects, "unseen": self.unseen}
        (directory / FILE).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def load(directory: Path) -> State:
    """Read a State that was kept; UserError where there is none, or not a whole one."""
    path = directory / FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return State(value["objects"], value["unseen"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{shown(path)}: no snapshot of a cluster: {problem}") from None


def collect(kubectl: Kubectl, kinds: tuple[str, ...] = (*CLUSTER_WIDE, *ALL_NAMESPACES)) -> State:
    """Ask the cluster. Raises UserError where it is not reached at all."""
    state = State()
    patience = Patience("the cluster")
    for kind in kinds:
        scope = ["--all-namespaces"] if kind in ALL_NAMESPACES else []
        try:
            with patience.during(f"kubectl get {kind}"):
                found = kubectl.items(kind, *scope)
            state.objects[kind] = [_lean(one) for one in found]
        except UserError as problem:
            if "orbidden" not in problem.message and "resource type" not in problem.message:
                raise
            state.unseen[kind] = problem.message
    return state


def _lean(item: Object) -> Object:
    """Return an object without what no check reads: managed fields, and the values of variables."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    spec = dict(item.get("spec") or {})
    for key in ("containers", "initContainers"):
        if isinstance(spec.get(key), list):
            spec[key] = [{name: one.get(name) for name in ("name", "resources")} for one in spec[key]]
    rest = {
        key: value for key, value in item.items() if key not in ("metadata", "spec", "data", "stringData")
    }
    if "spec" in item:
        rest["spec"] = {} if item.get("kind") == "CustomResourceDefinition" else spec
    return {**rest, "metadata": metadata}
