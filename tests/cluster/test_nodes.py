"""What the real nodes offer beside pods: a registry to pull from, and claims that bind by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.api import Object
from tests.cluster.conftest import Nodes
from tests.cluster.kube import Kube
from tests.cluster.nodes import TRAINER
from tests.cluster.storage import directory_of
from tools.cluster import isolation
from tools.core.verdict import State
from tools.kube.kubectl import Kubectl

SECONDS = 120
BY_DIGEST = TRAINER.rpartition(":")[0]


def test_a_claim_gets_a_volume_and_gives_it_back(kube: Kube, nodes: Nodes, namespace: str) -> None:
    """base/storage/default-class as committed: a directory is created for it and removed with it."""
    directory = _claim(kube, namespace)
    assert directory.is_dir()
    kube.run("delete", "pvc", "trainyard", "-n", namespace)
    kube.wait("the directory to go", lambda: not directory.exists(), SECONDS)


def test_an_image_is_pulled_by_its_digest_and_writes_to_the_claim(kube: Kube, nodes: Nodes, namespace: str) -> None:
    """On both nodes, into one directory."""
    directory = _claim(kube, namespace)
    names = [node.name for node in nodes.nodes]
    kube.put([_writer(name, f"{BY_DIGEST}@{nodes.digest}") for name in names], namespace)
    kube.wait("both files", lambda: all((directory / name).exists() for name in names), SECONDS)
    # The kubelet says which image it is a little after the container has begun.
    kube.wait("their images", lambda: all(_image_of(kube, name, namespace) for name in names), SECONDS)
    assert all(_image_of(kube, name, namespace).endswith(nodes.digest) for name in names)


@pytest.mark.usefixtures("asked")
def test_a_network_that_enforces_no_policy_is_found(
    kube: Kube, nodes: Nodes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These nodes have a bridge and nothing that reads policies. What the probe creates is removed."""
    monkeypatch.setattr(isolation, "_image", lambda: f"{BY_DIGEST}@{nodes.digest}")
    found = isolation.probe(Kubectl(), namespace)
    assert (found.state, len(found.evidence)) == (State.FAIL, 2), found
    gone = lambda: not [*kube.list("pods", namespace), *kube.list("networkpolicies", namespace)]  # noqa: E731
    kube.wait("the probe's objects to go", gone, SECONDS)


def test_control_another_digest_is_not_to_be_had(kube: Kube, nodes: Nodes, namespace: str) -> None:
    """So the image did come from the registry, and the requested one runs."""
    _claim(kube, namespace)
    kube.put([_writer(nodes.nodes[0].name, f"{BY_DIGEST}@sha256:{'0' * 64}")], namespace)

    def refused() -> bool:
        found = kube.get("pod", nodes.nodes[0].name, namespace) or {}
        states = [one["state"] for one in found.get("status", {}).get("containerStatuses") or []]
        return any("ImagePull" in state.get("waiting", {}).get("reason", "") for state in states)

    kube.wait("a refusal", refused, SECONDS)


def _image_of(kube: Kube, pod: str, namespace: str) -> str:
    statuses = (kube.get("pod", pod, namespace) or {})["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("imageID", ""))


def _claim(kube: Kube, namespace: str) -> Path:
    """Apply the committed claim and return the directory of its volume once it is bound."""
    kube.run("apply", "--server-side", f"--namespace={namespace}", "-k", "base/storage/default-class")

    def bound() -> Object:
        return kube.get("pvc", "trainyard", namespace) or {}

    kube.wait("the claim bound", lambda: bound().get("status", {}).get("phase") == "Bound", SECONDS)
    return directory_of(kube.get("pv", bound()["spec"]["volumeName"]) or {})


def _writer(node: str, image: str) -> Object:
    """Return a pod on a node that writes a file named after the node to the claim, and stays."""
    security = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "writer",
        "image": image,
        "command": ["sh", "-c", f"touch /shared/{node}; exec sleep 600"],
        "securityContext": security,
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "trainyard"}}
    spec = {
        "nodeName": node,
        "containers": [container],
        "volumes": [volume],
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node}, "spec": spec}
