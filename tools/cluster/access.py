"""Access to a cluster's API server: EKS access entries and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.aws.policies import OWNER_TAG
from tools.aws.session import AwsError, Session

POLICIES = {
    "admin": "AmazonEKSClusterAdminPolicy",
    "edit": "AmazonEKSEditPolicy",
    "view": "AmazonEKSViewPolicy",
}


def policy_arn(partition: str, policy: str) -> str:
    return f"arn:{partition}:eks::aws:cluster-access-policy/{POLICIES[policy]}"


@dataclass(frozen=True)
class Grant:
    """A policy for a principal in some namespaces, or in the whole cluster if none is named."""

    principal: str
    policy: str  # a key of POLICIES
    namespaces: tuple[str, ...] = ()

    def arn(self) -> str:
        """Return the ARN of the policy, in the partition of the principal."""
        return policy_arn(self.principal.split(":")[1], self.policy)

    def scope(self) -> dict[str, Any]:
        if self.namespaces:
            return {"type": "namespace", "namespaces": list(self.namespaces)}
        return {"type": "cluster"}


@dataclass(frozen=True)
class Change:
    """A call that makes one change, and the line that describes it."""

    line: str
    operation: str
    parameters: Mapping[str, object]


def difference(session: Session, cluster: str, grant: Grant) -> list[Change]:
    """Return the changes that are needed for `grant`; none where it exists already. Raises AwsError."""
    who = {"clusterName": cluster, "principalArn": grant.principal}
    try:
        session.call("eks", "describe_access_entry", **who)
        listing = session.pages("eks", "list_associated_access_policies", "associatedAccessPolicies", **who)
        policies = {row["policyArn"]: row["accessScope"] for row in listing}
        changes = []
    except AwsError as problem:
        if problem.kind != "missing" or "cluster" in problem.message.partition(": ")[2].lower():
            raise
        policies = {}
        changes = [
            Change(
                f"+ access entry {grant.principal}",
                "create_access_entry",
                {**who, "type": "STANDARD", "tags": {OWNER_TAG: cluster}},
            )
        ]
    old = policies.get(grant.arn())
    if old is None or not _same(old, grant.scope()):
        parameters = {**who, "policyArn": grant.arn(), "accessScope": grant.scope()}
        before = f"- {_words(grant, old)}\n" if old else ""
        line = f"{before}+ {_words(grant, grant.scope())}"
        changes.append(Change(line, "associate_access_policy", parameters))
    return changes


def apply(session: Session, changes: list[Change]) -> None:
    for change in changes:
        session.call("eks", change.operation, **change.parameters)


def _same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    names = [sorted(one.get("namespaces") or []) for one in (old, new)]
    return bool(old.get("type") == new.get("type") and names[0] == names[1])


def _words(grant: Grant, scope: dict[str, Any]) -> str:
    names = scope.get("namespaces") or []
    where = f"in {', '.join(names)}" if names else "in the whole cluster"
    return f"{POLICIES[grant.policy]} {where}"
