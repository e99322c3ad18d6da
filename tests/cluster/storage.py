"""The default storage class: Rancher's local-path-provisioner, unchanged, on a directory that all nodes see.

It runs beside the control plane with the rights of its ServiceAccount, and makes a directory for each claim
by a pod on a node.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane

NAMESPACE = "local-path-storage"
ACCOUNT = "local-path-provisioner-service-account"
CONFIG = "local-path-config"


def start(plane: ControlPlane, image: str, nodes: list[str]) -> None:
    """Apply upstream's manifests for a directory of this machine and start the provisioner.

    Its pods have `image`, which needs a shell, and run on one of `nodes`: kwok's nodes have no directories.
    """
    root = plane.sandbox.root
    volumes = root / "volumes"
    volumes.mkdir(mode=0o755)
    manifest = plane.programs.provisioner_manifests / "local-path-storage.yaml"
    objects = [one for one in yaml.safe_load_all(manifest.read_text(encoding="utf-8")) if one]
    config = {"sharedFileSystemPath": str(volumes)}
    for item in objects:
        if item["kind"] == "StorageClass":
            item["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
            item["volumeBindingMode"] = "Immediate"
        elif item["kind"] == "ConfigMap":
            pod = yaml.safe_load(item["data"]["helperPod.yaml"])
            pod["spec"] |= _only_on(nodes)
            pod["spec"]["containers"][0] |= {"image": image, "securityContext": {"runAsUser": 0}}
            item["data"] |= {"helperPod.yaml": yaml.safe_dump(pod), "config.json": json.dumps(config)}
    kept = [item for item in objects if item["kind"] != "Deployment"]
    plane.kube.put(kept)
    data = next(item["data"] for item in kept if item["kind"] == "ConfigMap")
    home = root / "provisioner"
    home.mkdir()
    for name, text in data.items():
        (home / name).write_text(text, encoding="utf-8")
    token = plane.kube.run("create", "token", ACCOUNT, f"--namespace={NAMESPACE}", "--duration=24h").strip()
    plane.pki.kubeconfig(home / "kubeconfig", {"token": token})
    plane.sandbox.start(
        "local-path-provisioner",
        [
            *(plane.programs.path("local-path-provisioner"), "start", "--config", home / "config.json"),
            *("--namespace", NAMESPACE, "--kubeconfig", home / "kubeconfig"),
            *("--helper-pod-file", home / "helperPod.yaml", "--service-account-name", ACCOUNT),
        ],
    )


def directory_of(volume: Object) -> Path:
    """Return the directory of this machine behind a bound PersistentVolume."""
    return Path(volume["spec"]["hostPath"]["path"])


def _only_on(nodes: list[str]) -> Object:
    wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
