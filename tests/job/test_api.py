"""`yard job` and the cells use only stable Kubernetes APIs of the last four minor releases.

The tests run on one release (docs/operating.md names it). Each API group has the release that made it stable,
from the release notes.
"""

from __future__ import annotations

import json
from subprocess import CompletedProcess

import pytest

from tests.job.conftest import KINDS
from tools.cells import kustomize
from tools.core import repo
from tools.job import nccl_test
from tools.job.snapshot import kinds
from tools.kube.kubectl import CRDS, Kubectl
from tools.kube.manifests import Manifests

OLDEST = 33  # of the last four minor releases, 1.33 to 1.36
STABLE_SINCE = {
    "v1": 0,
    "apps/v1": 9,
    "batch/v1": 0,
    "discovery.k8s.io/v1": 21,
    "networking.k8s.io/v1": 7,
    "rbac.authorization.k8s.io/v1": 8,
    "storage.k8s.io/v1": 6,
}
OPERATOR = {"kubeflow.org/v1"}
# The API group of each resource that a snapshot reads.
GROUP_OF = {
    **dict.fromkeys(
        ("events", "services", "persistentvolumeclaims", "resourcequotas", "nodes", "persistentvolumes"), "v1"
    ),
    "networkpolicies": "networking.k8s.io/v1",
    "storageclasses": "storage.k8s.io/v1",
}


def versions(manifests: Manifests) -> set[str]:
    return {str(item["apiVersion"]) for item in manifests.objects}


@pytest.mark.parametrize("cell", KINDS)
def test_cells_use_stable_apis(cell: str, rendered: dict[str, Manifests]) -> None:
    assert versions(rendered[cell]) | versions(nccl_test.manifests(cell)) <= set(STABLE_SINCE) | OPERATOR


@pytest.mark.parametrize("service", ["tensorboard", "tensorboard-exposed", "debug"])
def test_services_use_stable_apis(service: str) -> None:
    assert versions(kustomize.rendered(repo.root() / "base/services" / service)) <= set(STABLE_SINCE)


def test_a_snapshot_reads_stable_apis_of_the_last_four_releases() -> None:
    asked = {**kinds.NAMESPACED, **kinds.GLOBAL}.values()
    assert {GROUP_OF[resource] for resource in asked} <= set(STABLE_SINCE)
    assert max(STABLE_SINCE.values()) < OLDEST
    assert not [name for name in STABLE_SINCE if "alpha" in name or "beta" in name]


@pytest.mark.parametrize(
    ("namespace", "words", "path"),
    [
        ("team", ("pods", "--selector=a=b,c=d"), "/api/v1/namespaces/team/pods?labelSelector=a%3Db%2Cc%3Dd"),
        ("team", ("events", "--namespace=default"), "/api/v1/namespaces/default/events"),
        ("team", ("nodes",), "/api/v1/nodes"),
        (None, (CRDS,), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        (
            None,
            ("pods", "--all-namespaces", "--field-selector=spec.nodeName!="),
            "/api/v1/pods?fieldSelector=spec.nodeName%21%3D",
        ),
        (None, ("pods",), None),  # in the context's namespace
        ("team", ("services",), None),
        ("team", ("pods", "--ignore-not-found"), None),
    ],
)
def test_long_lists_are_asked_for_by_their_path(
    namespace: str | None, words: tuple[str, ...], path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server leaves out the kinds of a list's objects; an answer of kubectl has them."""
    asked: list[tuple[str, ...]] = []
    pod = {"metadata": {"name": "a"}}
    answers = [json.dumps({"kind": "PodList", "apiVersion": "v1", "items": [pod]}, separators=(",", ":"))]
    by_path, usual = ("get", f"--raw={path}"), ("get", *words, "--output=json")

    def run(_: Kubectl, *given: str, **more: object) -> CompletedProcess[str]:
        asked.append(given)
        return CompletedProcess(given, 0, answers[-1] if given == usual else answers[0], "")

    monkeypatch.setattr(Kubectl, "run", run)
    assert Kubectl(None, namespace).items(*words) == [{"apiVersion": "v1", "kind": "Pod", **pod}]
    assert asked == [by_path if path else usual]
    answers.insert(0, "<html>another server's page</html>")
    assert Kubectl(None, namespace).items(*words)
    assert asked[1:] == ([by_path, usual] if path else [usual])
