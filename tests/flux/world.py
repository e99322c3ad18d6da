"""A cluster of clusters/<name> under Flux, with simulated parts for those that a test machine lacks.

Simulated (PLAYED) are the controllers of Helm charts, whose registries cannot be reached, and the file
systems of AWS. Real are etcd, the API server, the controller manager, the scheduler, the training operator
and kustomize-controller. kwok simulates the kubelets.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.kube import condition
from tests.cluster.machines import fake_node
from tests.flux.fleet import KIND, Fleet, commit
from tests.flux.fleet import condition as said
from tools.cells.knobs import Knobs
from tools.cells.kustomize import Renderer
from tools.facts.instances import instance
from tools.gitops import new_run
from tools.gitops.new_run import Wanted

DIGEST = f"sha256:{'a1' * 32}"
IMAGE = f"registry.example/trainer-cpu@{DIGEST}"
NODES = {
    "cpu-demo": ["m5.2xlarge"] * 2,
    "gpu": ["m5.2xlarge"] * 2 + ["p4d.24xlarge"] * 4,
    "gpu-hyperpod": ["m5.2xlarge"] * 2 + ["p5en.48xlarge"] * 4,
    "trn1": ["m5.2xlarge"] * 2 + ["trn1.32xlarge"] * 2,
}
# Set by HyperPod's health agent. Other clusters ignore it.
HEALTHY = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
# The simulated kinds, and the component that is simulated.
PLAYED = {
    "HelmRelease": "Flux's helm-controller and the chart's registry",
    "OCIRepository": "Flux's source-controller and the chart's registry",
    "ClusterQueue": "Kueue, which comes with its chart",
    "LocalQueue": "Kueue, which comes with its chart",
    "PersistentVolumeClaim": "AWS: FSx for Lustre makes a file system",
}
TYPES = {
    "HelmRelease": ("helmreleases.helm.toolkit.fluxcd.io", "Ready"),
    "OCIRepository": ("ocirepositories.source.toolkit.fluxcd.io", "Ready"),
    "ClusterQueue": ("clusterqueues.kueue.x-k8s.io", "Active"),
    "LocalQueue": ("localqueues.kueue.x-k8s.io", "Active"),
}
UP_SECONDS = 480
LATE = ("ReconciliationFailed", "HealthCheckFailed")


@dataclass
class World:
    """A cluster and the clone that it is reconciled from."""

    fleet: Fleet
    root: Path
    name: str
    operator_runs: bool = False
    has_kueue: bool = False
    before_platform: set[str] = field(default_factory=set)  # Kustomizations that existed before `plugins` was Ready
    runs_said: set[str] = field(default_factory=set)  # the reasons of `runs` until then

    @property
    def cluster(self) -> Path:
        return self.root / "clusters" / self.name

    def bring_up(self) -> None:
        """Set up the cluster as a user does once, and wait until everything is Ready."""
        fleet = self.fleet
        for index, kind in enumerate(NODES[self.name]):
            fleet.kube.put([fake_node(instance(kind), f"node-{index}", HEALTHY)])
        if self.name == "gpu-hyperpod":  # HyperPod's Helm chart installs the operator
            self._run_operator()
        fleet.apply(self.cluster)
        fleet.wait("the whole cluster to be Ready", self._is_up, UP_SECONDS)

    def _is_up(self) -> bool:
        found = self.fleet.kube.list(KIND)
        states = {item["metadata"]["name"]: said(item).get("status") for item in found}
        if states.get("plugins") != "True":
            self.before_platform |= set(states)
            self.runs_said |= {str(said(item).get("reason")) for item in found if item["metadata"]["name"] == "runs"}
        if not self.operator_runs and self._has_operator_manifests():
            self._run_operator()
        self.play()
        self._hurry(found)
        return len(states) > 4 and set(states.values()) == {"True"}

    def _has_operator_manifests(self) -> bool:
        return self.fleet.kube.get("deployment", "training-operator", "kubeflow") is not None

    def _run_operator(self) -> None:
        self.fleet.plane.start_operator()
        self.operator_runs = True

    def _hurry(self, found: list[Object]) -> None:
        """Reconcile again what failed before its operator ran; the next retry would be minutes away."""
        late = [item["metadata"]["name"] for item in found if said(item).get("reason") in LATE]
        if late and self.operator_runs:
            self.fleet.poke(*late)

    def play(self) -> None:
        """Write the objects and conditions of the simulated components."""
        for item in self._of("HelmRelease", "OCIRepository"):
            self._say(item)
        if self.has_kueue:
            for item in self._of("ClusterQueue", "LocalQueue"):
                self._say(item)
        for claim in self.fleet.kube.list("persistentvolumeclaims"):
            if (claim.get("status") or {}).get("phase") == "Pending":
                self.fleet.kube.put([_volume(claim)])

    def _of(self, *kinds: str) -> list[Object]:
        return self.fleet.kube.list(",".join(TYPES[kind][0] for kind in kinds))

    def _say(self, item: Object) -> None:
        kind = item["kind"]
        name, wanted = TYPES[kind]
        if condition(item, wanted):
            return
        if kind == "HelmRelease" and item["metadata"]["name"] == "kueue":
            paths = sorted(self.fleet.parts.folder("crds/kueue").glob("kueue.x-k8s.io_*.yaml"))
            types = "\n---\n".join(path.read_text(encoding="utf-8") for path in paths)
            self.fleet.kube.apply(types, None)
            self.has_kueue = True
        generation = item["metadata"]["generation"]
        played = {"type": wanted, "status": "True", "reason": "Played", "message": PLAYED[kind]}
        played |= {"lastTransitionTime": _now(), "observedGeneration": generation}
        status = {"conditions": [played]} | ({"observedGeneration": generation} if wanted == "Ready" else {})
        words = (
            "patch",
            name,
            item["metadata"]["name"],
            f"--namespace={item['metadata'].get('namespace', '')}",
        )
        patch = json.dumps({"status": status})
        self.fleet.kube.run(*words, "--subresource=status", "--type=merge", f"--patch={patch}")

    def push(self, message: str = "change") -> str:
        """Commit the clone, wait until the cluster's sync has it, and return the commit."""
        made = commit(self.root, message)
        self.fleet.wait("the sync", lambda: self.fleet.ready("flux-system", made))
        return made

    def add_run(self, renderer: Renderer, suffix: str, knobs: Knobs | None = None) -> str:
        """Create a run as `yard cluster run new` does, commit it, and return its name."""
        wanted = Wanted("cpu/llama-tiny", self.name, knobs=replace(knobs or Knobs(), name=suffix, image=IMAGE))
        made = new_run.make(self.root, wanted, renderer)
        new_run.write(made)
        self.push(f"Run {made.path.stem}")
        return made.path.stem

    def job(self, run: str, kind: str = "pytorchjobs.kubeflow.org") -> Object:
        """Return a run's job, or another object of it, or an empty object where it does not exist."""
        selector = f"kustomize.toolkit.fluxcd.io/name={run}"
        found = self.fleet.kube.list(kind, None, selector)
        return found[0] if found else {}

    def running(self, run: str) -> Object:
        """Wait until a run's job is running, and return it."""
        self.fleet.wait(f"{run} to run", lambda: condition(self.job(run), "Running") is not None)
        return self.job(run)

    def pods(self, job: Object) -> list[Object]:
        selector = f"training.kubeflow.org/job-name={job['metadata']['name']}"
        return self.fleet.kube.list("pods", job["metadata"]["namespace"], selector)

    def write_pod(self, pod: Object, **status: object) -> None:
        """Write the status of a pod as its kubelet would."""
        metadata = pod["metadata"]
        words = ("patch", "pod", metadata["name"], f"--namespace={metadata['namespace']}")
        patch = json.dumps({"status": status})
        self.fleet.kube.run(*words, "--subresource=status", "--type=merge", f"--patch={patch}")


def _volume(claim: Object) -> Object:
    """Return the volume that the CSI driver would create for a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pvc-{metadata['uid']}"},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "claimRef": {
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "csi": {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-0123456789abcdef0"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": spec["storageClassName"],
        },
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
