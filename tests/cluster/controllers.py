"""The controllers of JobSet, Kubeflow Trainer and Kueue beside the API server, with upstream's manifests.

As the training operator (control_plane.py): everything of upstream's manifests but the Deployment is applied,
and the program runs with the Deployment's ServiceAccount and its own /tmp. Kueue reads the configuration of
base/plugins/kueue, with other ports and shorter times.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import condition
from tests.cluster.sandbox import UP_SECONDS, Process
from tools.core import repo

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The Deployments run here instead, and no server for Kueue's visibility API does.
LEFT_OUT = ("APIService", "Deployment", "ServiceMonitor")
QUIET = {"leaderElection": {"leaderElect": False}, "metrics": {"bindAddress": "0"}}
_POD = {"spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": "none"}]}}


@dataclass(frozen=True)
class Controller:
    """One controller: where upstream's manifests lie, what it runs as, and an object that its webhook judges."""

    program: str
    folder: str  # of build.MODULES
    manifests: str
    namespace: str
    account: str
    secret: str
    port: int
    probe: Object
    config: Object = field(default_factory=dict)


JOBSET = Controller(
    program="jobset",
    folder="jobset",
    manifests="default",
    namespace="jobset-system",
    account="jobset-controller-manager",
    secret="jobset-webhook-server-cert",
    port=19543,
    config={
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": True},
        "clientConnection": {"qps": 400, "burst": 800},
    },
    probe={
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": _POD}}}]},
    },
)
TRAINER = Controller(
    program="trainer-controller-manager",
    folder="trainer",
    manifests="overlays/manager",
    namespace="kubeflow-system",
    account="kubeflow-trainer-controller-manager",
    secret="kubeflow-trainer-webhook-cert",
    port=19643,
    config={
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "featureGates": {"TrainJobStatus": True},
        "clientConnection": {"qps": 400, "burst": 800},
        "certManagement": {
            "enable": True,
            "webhookServiceName": "kubeflow-trainer-controller-manager",
            "webhookSecretName": "kubeflow-trainer-webhook-cert",
        },
    },
    probe={
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {"runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "none"}},
    },
)
KUEUE = Controller(
    program="kueue",
    folder="kueue",
    manifests="default",
    namespace="kueue-system",
    account="kueue-controller-manager",
    secret="kueue-webhook-server-cert",
    port=19743,
    probe={
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "probe"},
        "spec": {"namespaceSelector": {}},
    },
)


def kueue_config() -> Object:
    """Return the configuration of base/plugins/kueue, with times that a test can wait for."""
    (release,) = (
        one
        for one in yaml.safe_load_all((repo.root() / "base/plugins/kueue/release.yaml").read_text(encoding="utf-8"))
        if one["kind"] == "HelmRelease"
    )
    found: Object = yaml.safe_load(release["spec"]["values"]["managerConfig"]["controllerManagerConfigYaml"])
    ready = found["waitForPodsReady"] | {"timeout": "120s", "recoveryTimeout": "120s"}
    ready["requeuingStrategy"] = ready["requeuingStrategy"] | {"backoffBaseSeconds": 600}
    return found | {"waitForPodsReady": ready}


def start(plane: ControlPlane, *wanted: Controller) -> None:
    """Apply the manifests of all controllers, then start the controllers and wait for their webhooks."""
    for one in wanted:
        plane.kube.make_namespace(one.namespace)
        plane.kube.apply(_manifests(plane, one), None, "--force-conflicts")
    names = [item["metadata"]["name"] for item in plane.kube.list("crd")]

    def established() -> bool:
        return all(condition(plane.kube.get("crd", name) or {}, "Established") for name in names)

    plane.sandbox.wait("the types", established, UP_SECONDS)
    running = [_run(plane, one) for one in wanted]

    def answer() -> bool:
        """Kueue's webhooks judge JobSets and TrainJobs too, so that every one needs its certificate first."""
        there = [plane.put_certificate(one.program, one.secret, one.namespace) for one in wanted]
        return all(there) and all(_answers(plane, one.probe) for one in wanted)

    plane.sandbox.wait("the webhooks of the controllers", answer, UP_SECONDS, running)


def _manifests(plane: ControlPlane, one: Controller) -> str:
    """Return upstream's manifests, with the webhooks where the controller runs."""
    source = plane.programs.controller_manifests(one.folder) / one.manifests
    text = (source / "kustomization.yaml").read_text(encoding="utf-8")
    if "third-party" in text:  # JobSet by its address, which is here already
        build = yaml.safe_load(text)
        folders = [source / name for name in build["resources"] if not name.endswith(".yaml") and "third" not in name]
        source = plane.sandbox.root / f"manifests-{one.program}"
        source.mkdir(parents=True)
        build["resources"] = [os.path.relpath(folder.resolve(), source.resolve()) for folder in folders]
        (source / "kustomization.yaml").write_text(yaml.safe_dump(build), encoding="utf-8")
    kept = []
    for item in yaml.load_all(plane.kube.run("kustomize", str(source)), Loader=_LOADER):
        if item["kind"] in LEFT_OUT:
            continue
        if item["kind"] == "Service":
            item["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        for webhook in [*(item.get("webhooks") or []), *_conversion(item)]:
            webhook["clientConfig"]["service"]["port"] = one.port
        kept.append(item)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": kept})


def _conversion(item: Object) -> list[Any]:
    found = (item.get("spec") or {}).get("conversion") if item["kind"] == "CustomResourceDefinition" else None
    return [found["webhook"]] if found and found.get("webhook") else []


def _run(plane: ControlPlane, one: Controller) -> Process:
    health = {"health": {"healthProbeBindAddress": f"127.0.0.1:{one.port + 1}"}}
    config = (one.config or kueue_config()) | QUIET | health | {"webhook": {"port": one.port}}
    plane.home_of(one.program).mkdir()
    (plane.home_of(one.program) / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return plane.start_controller(one.program, one.account, one.namespace, "--config=/tmp/config.yaml")


def _answers(plane: ControlPlane, probe: Object) -> bool:
    """Return whether the webhook itself accepts or denies an object."""
    done = plane.kube.call("create", "--dry-run=server", "-f", "-", given=json.dumps(probe))
    return done.code == 0 or "denied the request" in done.err
