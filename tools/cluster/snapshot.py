"""What a cluster's API server reports about nodes and components at one moment. It can be saved to a file.

Every check reads a Snapshot instead of the cluster, so that a verdict can be repeated from a saved one. A
kind that could not be listed is in `unseen` with the reason, and no check concludes anything from its
absence.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from tools.aws.retry_budget import Waiting
from tools.core import UserError, foreign_files, repo, secret_patterns
from tools.kube import Kubectl, Object
from tools.kube.kubectl import CRDS, each

FILE = "cluster.json"
CRD, OPERATOR_WEBHOOK = CRDS, "validatingwebhookconfigurations"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # a copy with all values
SLICES = "endpointslices.discovery.k8s.io"
CLAIMS, DAEMONS, DEPLOYMENTS = "persistentvolumeclaims", "daemonsets.apps", "deployments.apps"
CLASSES, QUEUES = "storageclasses.storage.k8s.io", "localqueues.kueue.x-k8s.io"
MUTATING, CLUSTER_QUEUES = "mutatingwebhookconfigurations", "clusterqueues.kueue.x-k8s.io"
PRIORITIES, VOLCANO_QUEUES = "workloadpriorityclasses.kueue.x-k8s.io", "queues.scheduling.volcano.sh"
# Each kind is listed by itself: a missing permission hides one kind and not the rest.
JOBS = "pytorchjobs.kubeflow.org"
ALL_NAMESPACES = ("pods", SLICES, CLAIMS, DAEMONS, DEPLOYMENTS, QUEUES, JOBS)
OF_TEAM = (CLAIMS, QUEUES)  # the team's own are enough for the checks
KEPT = ("name", "resources", "restartPolicy")  # of a container
CHECKED = (
    *("nodes", "namespaces", CRD, OPERATOR_WEBHOOK, MUTATING, "csidrivers", "csinodes", "pods", SLICES, CLAIMS),
    *(DAEMONS, DEPLOYMENTS, CLASSES, QUEUES, CLUSTER_QUEUES, PRIORITIES, VOLCANO_QUEUES),
)


@dataclass(frozen=True)
class Snapshot:
    """Objects by kind, in the words of kubectl, and why other kinds are missing."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> list[Object]:
        """Return the objects of a kind, or none where it could not be listed."""
        return self.objects.get(kind, [])

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        for one in self.of(kind):
            metadata = one["metadata"]
            if metadata["name"] == name and namespace in (None, metadata.get("namespace")):
                return one
        return None

    def save(self, directory: Path) -> None:
        """Write it for this user only, with secrets masked: it holds pods of all namespaces."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        value = secret_patterns.masked({"objects": self.objects, "unseen": self.unseen})
        with foreign_files.writing(directory, FILE) as file:
            file.write(json.dumps(value, indent=1).encode() + b"\n")


def load(directory: Path) -> Snapshot:
    """Read a saved snapshot. Raises UserError where the file is missing or incomplete."""
    path = directory / FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Snapshot(value["objects"], value["unseen"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UserError(f"{repo.shown(path)}: not a snapshot of a cluster: {problem}") from None


def collect(kubectl: Kubectl, team: str | None = None, kinds: tuple[str, ...] = CHECKED) -> Snapshot:
    """Read the cluster. Of OF_TEAM, those of the namespace `team` do where all may not be listed.

    The first kind is read alone: a cluster that does not answer is asked once. Raises UserError for one.
    """
    snapshot, waiting = Snapshot(), Waiting("the cluster")

    def read(kind: str) -> list[Object] | str:
        """Return the objects of a kind, or why they may not be listed."""
        scopes = [(kubectl, ("--all-namespaces",) if kind in ALL_NAMESPACES else ())]
        if team and kind in OF_TEAM:
            scopes.append((Kubectl(kubectl.context, team), ()))
        reason = ""
        for asked, words in scopes:
            try:
                with waiting.during(f"kubectl get {kind}"):
                    return [_reduced(one) for one in asked.items(kind, *words)]
            except UserError as problem:
                if "orbidden" not in problem.message and "resource type" not in problem.message:
                    raise
                reason = problem.message
        return reason

    for kind, answer in zip(kinds, [read(kinds[0]), *each(read, kinds[1:])], strict=True):
        if isinstance(answer, str):
            snapshot.unseen[kind] = answer
        else:
            snapshot.objects[kind] = answer
    return snapshot


def images(item: Object) -> list[str]:
    """Return the images of a Deployment or DaemonSet."""
    template: Object = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [str(one.get("image")) for one in template.get("containers") or []]


def _reduced(item: Object) -> Object:
    """Return an object without fields that no check reads, such as managed fields and values of variables."""
    dropped = ("metadata", "spec", "data", "stringData")
    rest = {key: value for key, value in item.items() if key not in dropped}
    if "spec" in item:
        spec = {} if item.get("kind") == "CustomResourceDefinition" else dict(item["spec"] or {})
        for key in ("containers", "initContainers"):
            if isinstance(spec.get(key), list):
                spec[key] = [{name: one[name] for name in KEPT if name in one} for one in spec[key]]
        rest["spec"] = spec
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    if metadata.get("annotations"):
        notes = metadata["annotations"].items()
        metadata["annotations"] = {key: value for key, value in notes if key != LAST_APPLIED}
    return {**rest, "metadata": metadata}
