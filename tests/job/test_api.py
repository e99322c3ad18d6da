"""What `yard job` and the cells use of the Kubernetes API is older than the last four minor releases.

Only one release is tested on (docs/operating.md says which); this holds the rest to APIs that all of the last
four have: groups without alpha or beta, each with the release that made it stable (by its release notes).
"""

from __future__ import annotations

import pytest

from tests.job.conftest import KINDS
from tools.cells import kustomize
from tools.core import repo
from tools.job import nccl_test
from tools.job.snapshot import kinds
from tools.kube.manifests import Manifests, parse

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
# Resources that are asked for, and the group that kubectl finds them in.
GROUP_OF = {
    **dict.fromkeys(
        ("events", "services", "persistentvolumeclaims", "resourcequotas", "nodes", "persistentvolumes"), "v1"
    ),
    "networkpolicies": "networking.k8s.io/v1",
    "storageclasses": "storage.k8s.io/v1",
}


def versions(manifests: Manifests) -> set[str]:
    """The API versions of some objects."""
    return {str(item["apiVersion"]) for item in manifests.objects}


@pytest.mark.parametrize("cell", KINDS)
def test_cells_are_made_of_stable_apis(cell: str, rendered: dict[str, Manifests]) -> None:
    assert versions(rendered[cell]) <= set(STABLE_SINCE) | OPERATOR
    assert versions(nccl_test.manifests(cell)) <= set(STABLE_SINCE) | OPERATOR


@pytest.mark.parametrize("service", ["tensorboard", "tensorboard-exposed", "debug"])
def test_services_are_made_of_stable_apis(service: str) -> None:
    renderer = kustomize.find(repo.root())
    assert renderer is not None
    built = parse(renderer.build(repo.root() / "base/services" / service), service)
    assert versions(built) <= set(STABLE_SINCE)


def test_what_is_asked_for_is_of_stable_apis() -> None:
    asked = {**kinds.NAMESPACED, **kinds.GLOBAL}.values()
    assert {GROUP_OF[resource] for resource in asked} <= set(STABLE_SINCE)


def test_every_one_of_them_is_in_each_of_the_last_four_releases() -> None:
    assert max(STABLE_SINCE.values()) < OLDEST
    assert not [name for name in STABLE_SINCE if "alpha" in name or "beta" in name]
