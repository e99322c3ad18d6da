"""The options that several `yard cluster` commands have."""

import dataclasses
from typing import Any

from tools.aws import Session
from tools.cli._parameters import shared
from tools.cluster import context as contexts
from tools.cluster import spec as specs
from tools.cluster.cluster_env import Fact
from tools.core import UserError, repo
from tools.kube import Kubectl


@shared
def account(region: str | None, profile: str | None) -> dict[str, Any]:
    return {"session": Session(region, profile)}


@shared
def cluster_and_account(cluster: str, region: str | None, profile: str | None) -> dict[str, Any]:
    spec = specs.load(repo.project(), cluster)
    return {"spec": spec, "session": Session(region or spec.get("AWS_REGION"), profile)}


@shared
def cluster_or_context(
    cluster: str | None, context: str | None, namespace: str | None, region: str | None, profile: str | None
) -> dict[str, Any]:
    """Give a command `spec`, which has no directory where no CLUSTER is given, `session` and `kubectl`."""
    if cluster and context:
        raise UserError("CLUSTER and --context name one cluster each: give one of them")
    return _read(cluster, context, namespace, region, profile)


@shared
def cluster_and_context(
    cluster: str | None, context: str | None, namespace: str | None, region: str | None, profile: str | None
) -> dict[str, Any]:
    """Give a command the same. CLUSTER may be read through a --context."""
    return _read(cluster, context, namespace, region, profile)


def _read(
    cluster: str | None, context: str | None, namespace: str | None, region: str | None, profile: str | None
) -> dict[str, Any]:
    kubectl = Kubectl(context)
    spec = specs.load(repo.project(), cluster) if cluster else contexts.read(kubectl, namespace)
    if cluster and namespace:
        spec = dataclasses.replace(spec, facts={**spec.facts, "TEAM_NAMESPACE": Fact(namespace)})
    return {"spec": spec, "session": Session(region or spec.get("AWS_REGION"), profile), "kubectl": kubectl}
