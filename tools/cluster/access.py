"""Who may talk to a cluster's API server: EKS access entries and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tools.aws.policies import OWNER_TAG
from tools.aws.session import AwsError, Session

POLICIES = {
    "admin": "AmazonEKSClusterAdminPolicy",
    "edit": "AmazonEKSEditPolicy",
    "view": "AmazonEKSViewPolicy",
}


def policy_arn(partition: str, policy: str) -> str:
    """Return the ARN of a policy of POLICIES."""
    return f"arn:{partition}:eks::aws:cluster-access-policy/{POLICIES[policy]}"


@dataclass(frozen=True)
class Grant:
    """A policy for a principal: in some namespaces, or with none of them named in the whole cluster."""

    principal: str
    policy: str  # a key of POLICIES
    namespaces: tuple[str, ...] = ()

    def arn(self) -> str:
        """Return the policy's ARN, in the principal's partition; its account is `aws` in every one."""
        return policy_arn(self.principal.split(":")[1], self.policy)

    def scope(self) -> dict[str, object]:
        """Return the scope as EKS spells it."""
        if self.namespaces:
            return {"type": "namespace", "namespaces": list(self.namespaces)}
        return {"type": "cluster"}


@dataclass(frozen=True)
class Change:
    """One call that is still to be made, and the line that says what it does."""

    line: str
    operation: str
    parameters: Mapping[str, object]


def difference(session: Session, cluster: str, grant: Grant) -> list[Change]:
    """Return what has to change so that `grant` holds; nothing where it does already. Raises AwsError."""
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
    """Make the changes. Raises AwsError."""
    for change in changes:
        session.call("eks", change.operation, **change.parameters)


def _same(old: dict[str, object], new: dict[str, object]) -> bool:
    names = [sorted(map(str, one.get("namespaces") or [])) for one in (old, new)]  # type: ignore[call-overload]
    return old.get("type") == new.get("type") and names[0] == names[1]


def _words(grant: Grant, scope: dict[str, object]) -> str:
    names = scope.get("namespaces") or []
    where = f"in {', '.join(map(str, names))}" if names else "in the whole cluster"  # type: ignore[call-overload]
    return f"{POLICIES[grant.policy]} {where}"
